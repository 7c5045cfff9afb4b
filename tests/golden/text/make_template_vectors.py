#!/usr/bin/env python3
"""Makes template_vectors.jsonl and chat_template_vectors.jsonl with Jinja2 as the judge.

    pip install jinja2
    make_template_vectors.py

The environment is the one Hugging Face transformers gives to chat templates (its chat_template_utils.py). micro_cases.jsonl
and contexts.json beside it were written for this project in the same way. Made with Jinja2 3.1.6.
"""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2025, 1, 2, 3, 4, 5)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


# name, template, context: one thing each that micro_cases.jsonl does not have
CASES = [
    ("slice_neg_step", "{{ s[::-1] }} {{ s[-3:-1] }} {{ s[5:1:-2] }} {{ l[10:] }} {{ l[-99:2] }} {{ s[:99] }}",
     {"s": "aéîøü…z", "l": [1, 2, 3]}),
    ("slice_steps", "{{ l[1::2] }} {{ l[::-2] }} {{ l[:0:-1] }} {{ l[3:1] }} {{ l[:] }}", {"l": [0, 1, 2, 3, 4, 5]}),
    ("string_index", "{{ s[0] }}{{ s[-1] }}[{{ s[9] }}]", {"s": "äbc"}),
    ("arith_floor", "{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 // -2 }} {{ 7 % -3 }} {{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 6 / 3 }}", {}),
    ("arith_mixed", "{{ 1 + 2.0 }} {{ true + 1 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }} {{ 10 - 2 - 3 }} {{ 2 * 3 % 4 }}", {}),
    ("arith_neg", "{{ -x }} {{ - x ** 2 }} {{ +x }} {{ not x }} {{ -(-x) }}", {"x": 3}),
    ("int_zero_div", "{{ 1 // 0 }}", {}),
    ("float_repr", "{{ [0.1, 1e16, 1e15, 123456789012345680.0, 1e-5, 0.0001, 1.0, 100.0, 2.5e-300, 1/3] }}", {}),
    ("float_big", "{{ 1e22 }} {{ 1.7976931348623157e308 }} {{ 5e-324 }}", {}),
    ("numbers", "{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1e3 }} {{ 1.5e-3 }}", {}),
    ("compare_chain", "{{ 1 < 2 > 1 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 'B' < 'a' }}", {}),
    ("compare_error", "{{ 1 < 'a' }}", {}),
    ("compare_undefined", "{{ 1 < nope }}", {}),
    ("compare_none", "{{ none < 1 }}", {}),
    ("eq_deep", "{{ {'a': [1, {'b': 2}]} == {'a': [1, {'b': 2}]} }} {{ [1] == (1,) }} {{ 1 == true }} {{ nope == nope2 }}", {}),
    ("in_variants", "{{ '' in 'a' }} {{ 'x' in nope }} {{ 1 in (1, 2) }} {{ 'a' in ['a'] }} {{ 'b' not in {'a': 1} }}", {}),
    ("in_type_error", "{{ 1 in 'abc' }}", {}),
    ("undefined_arith", "{{ nope + 1 }}", {}),
    ("undefined_concat", "{{ 'a' ~ nope ~ 'b' }}", {}),
    ("undefined_length", "{{ nope|length }} {{ nope|list }} [{{ nope|join(',') }}] [{{ nope|upper }}] [{{ nope|trim }}]", {}),
    ("undefined_call", "{{ nope() }}", {}),
    ("undefined_int", "{{ nope|int }}", {}),
    ("undefined_tojson", "{{ nope|tojson }}", {}),
    ("undefined_in_list", "{{ [nope] }}", {}),
    ("attr_of_int", "[{{ (1).x }}] [{{ 'a'.x is defined }}] [{{ 'a'['x'] is defined }}]", {}),
    ("dict_int_key", "{{ {1: 'a', 'b': 2}[1] }} {{ {1: 'a'}[1.0] }} {{ {true: 1, 1: 2} }}", {}),
    ("dict_unhashable", "{{ {[1]: 2} }}", {}),
    ("list_negative", "{{ l[-1] }} [{{ l[-9] }}]", {"l": [1, 2]}),
    ("dot_index", "{{ l.0 }} {{ l.1.a }}", {"l": [1, {"a": 2}]}),
    ("getitem_expr", "{{ d['a' ~ 'b'] }} {{ d[k] }}", {"d": {"ab": 1}, "k": "ab"}),
    ("method_on_literal", "{{ 'a b'.split()[1].upper() }} {{ 'x'.join(['1', '2']) }}", {}),
    ("kwargs_spread", "{% macro f(a, b=2) %}{{ a }}-{{ b }}-{{ varargs }}-{{ kwargs }}{% endmacro %}"
     "{{ f(*[1, 5, 6], **{'c': 3}) }} {{ f(1, c=4) }} {{ f(b=1, a=2) }}", {}),
    ("macro_default_expr", "{% macro f(a, b=a ~ '!') %}{{ a }}{{ b }}{% endmacro %}{{ f('x') }}{{ f('x', 'y') }}", {}),
    ("macro_scope", "{% set x = 1 %}{% macro f() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}{% set x = 3 %}{{ f() }}", {}),
    ("macro_nested", "{% macro g(x) %}<{{ x }}>{% endmacro %}{% macro f(x) %}{{ g(x) ~ g(x + 1) }}{% endmacro %}{{ f(1) }}", {}),
    ("macro_as_value", "{% macro f(x) %}{{ x }}{% endmacro %}{% set g = f %}{{ g(3) }} {{ f is callable }} {{ f.name }}", {}),
    ("macro_twice", "{% macro f(a) %}1{% endmacro %}{% macro f(a) %}2{% endmacro %}{{ f(0) }}", {}),
    ("macro_result_trim", "{% macro f() %}  a {% endmacro %}[{{ f()|trim }}][{{ f().strip() }}]{{ f()|length }}", {}),
    ("call_args", "{% macro l(items) %}{% for i in items %}{{ caller(i, loop.index) }};{% endfor %}{% endmacro %}"
     "{% call(x, n) l(['a', 'b']) %}{{ n }}{{ x }}{% endcall %}", {}),
    ("filter_block_chain", "{% filter upper|replace('B', 'x') %}abc{% endfilter %}", {}),
    ("set_filter_block", "{% set x | upper | trim %} abc {% endset %}[{{ x }}]", {}),
    ("set_block_scope", "{% set a = 1 %}{% set b %}{% set a = 2 %}{{ a }}{% endset %}{{ a }}{{ b }}", {}),
    ("with_outer", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", {}),
    ("for_else_break", "{% for x in [1] %}{% break %}{% else %}e{% endfor %}|{% for x in [1] if x > 1 %}a{% else %}e{% endfor %}", {}),
    ("for_unpack", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", {}),
    ("for_unpack_error", "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}", {}),
    ("for_filter_loop", "{% for x in l if x is odd %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ loop.last }} {% endfor %}", {"l": [1, 2, 3, 5]}),
    ("for_nested_break", "{% for a in [1, 2] %}{% for b in [1, 2, 3] %}{% if b == 2 %}{% break %}{% endif %}{{ a }}{{ b }} {% endfor %}{% endfor %}", {}),
    ("for_set_outer", "{% set x = 0 %}{% for i in [1, 2, 3] %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", {}),
    ("for_int_error", "{% for x in 5 %}{{ x }}{% endfor %}", {}),
    ("for_shadow", "{% set m = 'o' %}{% for m in [1, 2] %}{{ m }}{% endfor %}{{ m }}", {}),
    ("for_dict_items_sorted", "{% for k, v in d|dictsort %}{{ k }}{{ v }} {% endfor %}{% for k, v in d|dictsort(reverse=true) %}{{ k }}{% endfor %}"
     "{% for k, v in d|dictsort(by='value') %}{{ k }}{% endfor %}", {"d": {"b": 1, "A": 3, "c": 2}}),
    ("loop_outer", "{% for a in [1, 2] %}{% set outer = loop %}{% for b in [1, 2] %}{{ outer.index }}.{{ loop.index }} {% endfor %}{% endfor %}", {}),
    ("loop_depth", "{% for n in t recursive %}{{ loop.depth }}{{ loop.depth0 }}{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{% endfor %}",
     {"t": [{"v": "a", "c": [{"v": "b", "c": [{"v": "c"}]}, {"v": "d"}]}]}),
    ("cycler_object", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.next() }}", {}),
    ("namespace_from_dict", "{% set ns = namespace({'a': 1}, b=2) %}{% set ns.c = 3 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}[{{ ns.d }}]", {}),
    ("namespace_set_error", "{% set d = {} %}{% set d.x = 1 %}", {}),
    ("namespace_nested", "{% set ns = namespace(l=[]) %}{% for i in range(3) %}{% set ns.l = ns.l + [i * i] %}{% endfor %}{{ ns.l }}", {}),
    ("set_multi", "{% set a, b = 'xy' %}{{ a }}{{ b }}{% set (c, d) = [1, 2] %}{{ c + d }}{% set t = 1, 2 %}{{ t }}", {}),
    ("print_tuple", "{{ 1, 'a' }} {{ (1) }} {{ () }} {{ (1,)[0] }}", {}),
    ("ternary_chain", "{{ a if a else b if b else 'c' }} {{ (1 if false) is defined }}", {"a": 0, "b": ""}),
    ("and_or_values", "{{ 0 or [] or 'x' }} {{ 1 and 2 }} {{ none or 0 }} {{ '' and 1 }}|", {}),
    ("not_precedence", "{{ not a == b }} {{ not a in [b] }} {{ not (a and b) }} {{ a is not none and b is none }}", {"a": 1, "b": None}),
    ("is_not_in", "{{ 1 is not in [2] }} {{ 3 is not divisibleby 2 }} {{ x is not defined or x is none }}", {}),
    ("test_ops", "{{ 1 is lt 2 }} {{ 2 is ge 2 }} {{ 1 is ne 2 }} {{ 'a' is filter }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ x is escaped }}", {"x": "a"}),
    ("test_case", "{{ 'abc1' is lower }} {{ 'ABC' is upper }} {{ '1' is lower }} {{ 'Ab' is upper }}", {}),
    ("test_unknown", "{{ 1 is bogus }}", {}),
    ("test_sequence", "{{ {} is sequence }} {{ 'a' is sequence }} {{ 1 is iterable }} {{ nope is iterable }} {{ nope is sequence }} {{ range(2) is iterable }}", {}),
    ("filter_chain_args", "{{ 'a,b'|replace(',', ';')|upper|trim('AB') }}", {}),
    ("filter_bad_kw", "{{ 'a'|upper(x=1) }}", {}),
    ("filter_too_many", "{{ 'a'|trim(1, 2, 3) }}", {}),
    ("f_int_forms", "{{ ' 12 '|int }} {{ '-3'|int }} {{ '1e2'|int }} {{ '0x1f'|int(base=16) }} {{ 3.9|int }} {{ none|int }} {{ [1]|int(7) }} {{ true|int }} {{ '1_000'|int }}", {}),
    ("f_float_forms", "{{ '1e3'|float }} {{ 'x'|float }} {{ 'x'|float(2.5) }} {{ 3|float }} {{ ' 1.5 '|float }}", {}),
    ("f_round_forms", "{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 1.21|round(1, 'ceil') }} {{ 1.29|round(1, 'floor') }} {{ 42|round }} {{ 1234.5|round(-2) }}", {}),
    ("f_sort_forms", "{{ ['b', 'A', 'c']|sort }} {{ ['b', 'A']|sort(case_sensitive=true) }} {{ [3, 1, 2]|sort(reverse=true) }} {{ l|sort(attribute='n')|map(attribute='v')|join }}",
     {"l": [{"n": 2, "v": "x"}, {"n": 1, "v": "y"}, {"n": 2, "v": "z"}]}),
    ("f_sort_mixed_error", "{{ [1, 'a']|sort }}", {}),
    ("f_sort_nested", "{{ l|sort(attribute='a.b')|map(attribute='a.b')|list }} {{ l|map(attribute='c.0', default='-')|list }}",
     {"l": [{"a": {"b": 2}, "c": ["q"]}, {"a": {"b": 1}}]}),
    ("f_unique_case", "{{ ['a', 'A', 'b']|unique|list }} {{ ['a', 'A']|unique(case_sensitive=true)|list }}", {}),
    ("f_min_max", "{{ ['b', 'A']|min }} {{ ['b', 'A']|max }} [{{ []|max }}] {{ l|max(attribute='n') }}", {"l": [{"n": 1}, {"n": 3}]}),
    ("f_groupby", "{% for g, items in l|groupby('k') %}{{ g }}:{{ items|map(attribute='v')|join(',') }} {% endfor %}",
     {"l": [{"k": "b", "v": 1}, {"k": "a", "v": 2}, {"k": "b", "v": 3}]}),
    ("f_batch_slice", "{{ [1, 2, 3, 4, 5]|batch(2, 'x')|list }} {{ [1, 2, 3, 4, 5]|slice(3)|list }} {{ [1, 2, 3, 4, 5]|slice(3, 'f')|list }}", {}),
    ("f_sum_attr", "{{ l|sum(attribute='n') }} {{ [1, 2]|sum(start=10) }} {{ [[1], [2]]|sum(start=[]) }}", {"l": [{"n": 1}, {"n": 2.5}]}),
    ("f_first_dict", "{{ {'a': 1, 'b': 2}|first }} {{ 'xyz'|last }} {{ 'xyz'|first }}", {}),
    ("f_reverse_str", "{{ 'añb'|reverse }} {{ [1, 2]|reverse|first }}", {}),
    ("f_title", "{{ \"it's a-b (c) [d] e.f\"|title }} {{ 'ÉCOLE dé'|title }}", {}),
    ("f_capitalize", "{{ 'éTÉ'|capitalize }} {{ 'ß'|upper }} {{ 'ЖЗ'|lower }}", {}),
    ("f_indent_forms", "{{ 'a\\nb'|indent }}|{{ 'a\\n\\nb\\n'|indent(2, blank=true) }}|{{ 'a\\nb'|indent('--', first=true) }}|{{ ''|indent(2, true) }}|", {}),
    ("f_truncate_forms", "{{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true) }} {{ 'foo bar baz qux'|truncate(11) }} {{ 'foo bar baz qux'|truncate(11, false, '...', 0) }} {{ 'abcdefghijkl'|truncate(5, false, '…', 0) }}", {}),
    ("f_center", "[{{ 'ab'|center(7) }}] [{{ 'abc'|center(6) }}]", {}),
    ("f_format", "{{ '%s %5d|%-5d|%05d %x %X %o %.2f %e %g %%'|format('a', 1, 2, 3, 255, 255, 8, 1.005, 12345.678, 0.0001) }}", {}),
    ("f_format_kw", "{{ '%(a)s-%(b)03d' | format(a='x', b=7) }} {{ '%(a)s' % {'a': 1} }} {{ '%r' % 'q' }} {{ '%c' % 'z' }} {{ '%5.1f|%+d|% d' % (2.25, 3, 4) }}", {}),
    ("f_format_error", "{{ '%d' % 'x' }}", {}),
    ("f_format_too_many", "{{ '%s' % (1, 2) }}", {}),
    ("f_format_too_few", "{{ '%s %s' % 1 }}", {}),
    ("str_format", "{{ '{0}{1}{0} {a} {{x}}'.format(1, 'b', a=2) }} {{ '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}|{:x}'.format('a', 'b', 'c', 42, 3.14159, 1234567, 255) }} {{ '{!r}'.format('q') }}", {}),
    ("str_format_attr", "{{ '{0[a]} {0[b][1]} {x[k]}'.format({'a': 1, 'b': [1, 2]}, x={'k': 'v'}) }} {{ '{:*^7}'.format('mid') }} {{ '{:+d} {:e}'.format(5, 1500.0) }}", {}),
    ("str_format_error", "{{ '{} {}'.format(1) }}", {}),
    ("f_join_ints", "{{ [1, 2.5, none, true]|join('-') }} {{ 'abc'|join('.') }} {{ d|join(',') }}", {"d": {"a": 1, "b": 2}}),
    ("f_map_args", "{{ ['a', 'b']|map('replace', 'a', 'x')|list }} {{ [1.55, 2.45]|map('round', 1)|list }} {{ ['1', 'x']|map('int', default=7)|list }}", {}),
    ("f_select_attr_forms", "{{ l|selectattr('a')|list|length }} {{ l|selectattr('a', 'eq', 1)|list|length }} {{ l|rejectattr('a', 'defined')|list|length }} {{ l|selectattr('b.c', 'equalto', 2)|list|length }}",
     {"l": [{"a": 1}, {"a": 0}, {"b": {"c": 2}, "a": 5}]}),
    ("f_select_unknown", "{{ [1]|select('bogus')|list }}", {}),
    ("f_default_forms", "{{ none|d('x', true) }} {{ 0|default(5) }} {{ d.q|default({'z': 1}) }} {{ ''|d }}|", {"d": {}}),
    ("f_replace_forms", "{{ 'aaa'|replace('', '-') }} {{ 'abc'|replace('b', '') }} {{ 12|replace(1, 9) }} {{ 'aé'|replace('é', 'e') }}", {}),
    ("f_items_error", "{{ [1]|items|list }}", {}),
    ("f_string_types", "{{ [1]|string ~ none|string ~ 1.0|string }} {{ (1, 'a')|string }} {{ {'a': none}|string }}", {}),
    ("f_length_error", "{{ 5|length }}", {}),
    ("f_wordcount", "{{ 'a bc, d_e f-g'|wordcount }} {{ ''|wordcount }}", {}),
    ("f_escape_forms", "{{ '<a href=\"x\">&\\'</a>'|e }} {{ '<'|e|e }} {{ '<'|forceescape }} {{ ('<'|e) ~ '>' }} {{ '<'|e + '>' }} {{ '>' + '<'|safe }}", {}),
    ("f_safe_concat", "{% set a = x|tojson|safe %}{{ n + '[A&B]' + a }} {{ a + '<' }}", {"x": {"k": "<v>"}, "n": "f"}),
    ("f_abs_forms", "{{ -1.5|abs }} {{ (-1.5)|abs }} {{ (-3)|abs }}", {}),
    ("s_methods", "{{ ' a '.lstrip() }}|{{ 'a\\n'.rstrip() }}|{{ 'abc'.find('z') }} {{ 'abcabc'.rfind('b') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('x') }} {{ 'abc'.rpartition('x') }}", {}),
    ("s_split_forms", "{{ 'a  b '.split(' ') }} {{ ' a b  c '.split(none, 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a,b,c'.rsplit(',') }} {{ 'aXbXc'.split('X', 0) }}", {}),
    ("s_split_empty", "{{ 'a'.split('') }}", {}),
    ("s_pad", "[{{ 'a'.center(4) }}] [{{ 'ab'.center(5, '*') }}] [{{ 'a'.ljust(3) }}] [{{ 'a'.rjust(3, '0') }}] {{ '-5'.zfill(4) }} {{ '+5'.zfill(1) }}", {}),
    ("s_class", "{{ 'a1'.isalnum() }} {{ 'a'.isalpha() }} {{ ''.isdigit() }} {{ ' '.isspace() }} {{ 'é'.isalpha() }} {{ 'é'.isascii() }} {{ ''.isascii() }}", {}),
    ("s_case_forms", "{{ \"it's o'neil\".title() }} {{ 'aBc'.swapcase() }} {{ 'ABC'.islower() }} {{ 'ABC1'.isupper() }}", {}),
    ("s_affix_tuple", "{{ 'abc'.endswith(('x', 'bc')) }} {{ 'abc'.startswith('') }} {{ 'a.txt'.removesuffix('.txt') }} {{ 'a'.removesuffix('b') }}", {}),
    ("s_splitlines_forms", "{{ 'a\\r\\nb\\rc\\n'.splitlines() }} {{ 'a\\nb'.splitlines(true) }} {{ ''.splitlines() }}", {}),
    ("s_join_error", "{{ ','.join([1, 2]) }}", {}),
    ("s_count_forms", "{{ 'aaaa'.count('aa') }} {{ 'abc'.count('') }} {{ 'é€é'.find('€') }} {{ 'abc'.index('c') }}", {}),
    ("s_index_error", "{{ 'abc'.index('z') }}", {}),
    ("s_strip_unicode", "[{{ s.strip() }}] [{{ s|trim }}] [{{ 'éaé'.strip('é') }}]", {"s": "\u00a0\u2003x\u3000\u2028"}),
    ("l_methods", "{{ [1, 2, 1].count(1) }} {{ ['a', 'b'].index('b') }} {{ (1, 2).count(3) }}", {}),
    ("l_index_error", "{{ [1].index(2) }}", {}),
    ("l_append_error", "{{ [1].append(2) }}", {}),
    ("d_update_error", "{{ {}.update({'a': 1}) }}", {}),
    ("d_methods", "{{ d.items()|list }} {{ d.get('x', 'y') }} {{ d.keys()|join(',') }} {{ 'a' in d.keys() }} {{ d.values()|sum }}", {"d": {"a": 1, "b": 2}}),
    ("d_dot_vs_item", "{{ d.get is callable }} {{ d['get'] }}", {"d": {"get": 1}}),
    ("dict_fn_forms", "{{ dict({'a': 1}, b=2) }} {{ dict([('x', 1)]) }} {{ dict() }}", {}),
    ("repr_strings", "{{ ['a\\\\b', \"it's\", 'q\"', \"b'\\\"\", 'nl\\n\\t', '\\x00\\x7f\\xa0', '\\u200b', '😀', '\\u00e9'] }}", {}),
    ("repr_nested", "{{ {'a': [1, (2,), {'b': none}], 'c': true} }} {{ [[]] }} {{ [()] }} {{ {} }}", {}),
    ("tojson_forms", "{{ {'a': (1, 2), 1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ []|tojson }} {{ {}|tojson(indent=2) }} {{ [[], {}, [1]]|tojson(indent=1) }}", {}),
    ("tojson_escapes", "{{ s|tojson }} {{ s|tojson(ensure_ascii=true) }}", {"s": "\u0000\u001f\u007f\u0080é\u2028😀\"\\/\b\f\n\r\t"}),
    ("tojson_indent_str", "{{ {'a': [1]}|tojson(indent='\t') }} {{ [1, 2]|tojson(indent=0) }}", {}),
    ("tojson_sort_nested", "{{ x|tojson(sort_keys=true, indent=2, separators=(',', ': ')) }}", {"x": {"b": {"d": 1, "c": 2}, "a": []}}),
    ("tojson_unserializable", "{{ range|tojson }}", {}),
    ("ws_minus_all", "  {%- set x = 1 -%}  \n  a  {{- x -}}  b  {#- c -#}  d", {}),
    ("ws_plus", "a\n  {%+ if true -%}\n b {%- endif +%}\n c", {}),
    ("ws_comment_lines", "a\n  {# one #}\n  {# two #}\nb\n", {}),
    ("ws_var_line", "a\n  {{ 1 }}  \n  {{- 2 }}\n", {}),
    ("ws_nested", "{% for i in [1, 2] %}\n  {% if i %}\n    {{ i }}\n  {% endif %}\n{% endfor %}\nend", {}),
    ("ws_tabs", "\t\t{% if true %}\t\n\tx\n\t{% endif %}\t\ny", {}),
    ("ws_block_after_text", "x {% if true %}\n y\n {% endif %} z\n", {}),
    ("ws_unicode", "a\u00a0{%- if true %} b{% endif -%}\u2003c", {}),
    ("raw_trim", "a\n {%- raw -%}\n {{ x }} {% if %}\n {%- endraw -%}\n b", {}),
    ("raw_lines", "{% raw %}\n{{ a }}\n{% endraw %}\nb", {}),
    ("raw_indent", "x\n  {% raw %}y{% endraw %}\n  {% raw -%}\n z {% endraw +%}\nw", {}),
    ("comment_in_code", "{{ 'a#}b' }}{# {{ x }} {% if %} #}c", {}),
    ("nested_dict_braces", "{{ {'a': {'b': {}}}['a'] }}{{ {}}}", {}),
    ("string_escapes_more", "{{ 'a\\u00e9\\x41\\101\\q\\a' }}{{ \"\\'\\\"\" }}{{ 'a\\\nb' }}", {}),
    ("percent_in_string", "{{ '%}' }}{% if '%}' == '%}' %}y{% endif %}{{ '}}' }}", {}),
    ("inline_if_filter", "{{ (x if x else 'no')|upper }} {{ x|default('q') if x is not defined else 'w' }}", {}),
    ("keywords_as_attr", "{{ d.if }} {{ d.for }} {{ d.in }}", {"d": {"if": 1, "for": 2, "in": 3}}),
    ("cap_constants", "{{ True }} {{ False }} {{ None }}", {}),
    ("deep_attr", "{{ a.b.c[0]['d'].e }}", {"a": {"b": {"c": [{"d": {"e": "x"}}]}}}),
    ("else_if_elif", "{% if a %}1{% elif b %}2{% elif c %}3{% else %}4{% endif %}", {"a": 0, "b": 0, "c": 1}),
    ("set_if_undefined", "{% if x is not defined %}{% set x = 'd' %}{% endif %}{{ x }}", {}),
    ("big_int", "{{ 9223372036854775807 }} {{ x }}", {"x": -9223372036854775808}),
    ("range_forms", "{{ range(0)|list }} {{ range(3, 0)|list }} {{ range(0, 10, 3)|list }} {{ range(3)|length }}", {}),
    ("range_zero_step", "{{ range(1, 2, 0) }}", {}),
    ("range_too_big", "{{ range(1000000)|length }}", {}),
    ("strftime_forms", "{{ strftime_now('%A %d %B %Y %H:%M:%S %j %%') }}", {}),
    ("raise_concat", "{{ raise_exception('bad ' + role) }}", {"role": "x"}),
    ("unknown_tag_do", "{% do x %}", {}),
    ("missing_endfor", "{% for x in [1] %}a", {}),
    ("stray_endif", "a{% endif %}", {}),
    ("bad_expr", "{{ 1 + }}", {}),
    ("unclosed_var", "{{ 1", {}),
    ("unclosed_string", "{{ 'a }}", {}),
    ("unclosed_comment", "a {# b", {}),
    ("bad_bracket", "{{ [1) }}", {}),
    ("empty_var", "{{ }}", {}),
    ("assign_literal", "{% set 1 = 2 %}", {}),
    ("break_outside", "{% break %}", {}),
    ("unicode_names", "{{ größe }}{% set ä = 1 %}{{ ä }}", {"größe": 5}),
    ("concat_list_str_error", "{{ [1] + 'a' }}", {}),
    ("mul_forms", "{{ 3 * 'ab' }} {{ [0] * 3 }} {{ 'a' * 0 }}| {{ (1,) * 2 }} {{ 'a' * -1 }}|", {}),
    ("mul_error", "{{ 'a' * 'b' }}", {}),
    ("str_minus_error", "{{ 'a' - 1 }}", {}),
    ("call_none_error", "{{ none() }}", {}),
    ("attr_none_error", "[{{ n.x }}]", {"n": None}),
    ("item_none_error", "[{{ n['x'] }}]", {"n": None}),
    ("bool_index", "{{ ['a', 'b'][true] }}", {}),
    ("loop_length_filter", "{% for x in 'abc' %}{% if not loop.last %}{{ x }},{% else %}{{ x }}{% endif %}{% endfor %}", {}),
    ("loop_changed_multi", "{% for a, b in [(1, 1), (1, 1), (1, 2)] %}{{ loop.changed(a, b) }}{% endfor %}", {}),
    ("map_on_none", "{{ n|map('upper')|list }} {{ n|selectattr('x')|list }} {{ n|reject|list }}", {"n": None}),
    ("map_on_int_error", "{{ n|map('upper')|list }}", {"n": 5}),
    ("slice_int_error", "{{ n[1:] }}", {"n": 5}),
    ("undefined_callable", "{{ nope is callable }} {{ nope is odd is defined }}", {}),
    ("odd_forms", "{{ '%s' is odd }} {{ 3.0 is odd }} {{ 2.5 is even }} {{ true is odd }}", {}),
    ("round_bool", "{{ t|round }} {{ 7|round(2) }}", {"t": True}),
    ("percent_undefined", "{{ 'a' % nope }}|", {}),
    ("pow_zero_negative", "{{ z ** -1 }}", {"z": 0}),
    ("dictsort_undefined", "{{ nope|dictsort }}", {}),
    ("unique_dicts_error", "{{ l|unique|list }}", {"l": [{"a": 1}]}),
    ("loop_printed", "{% for x in 'ab' %}{{ loop }}{% endfor %}", {}),
    ("loop_cycle_many", "{% for x in range(5) %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}", {}),
]


def main():
    env = environment()
    with open(HERE / "template_vectors.jsonl", "w", encoding="utf-8") as f:
        for name, template, context in CASES:
            line = {"id": name, "template": template, "context": context}
            try:
                line["expected"] = env.from_string(template).render(**context)
            except Exception as e:
                line["error"] = f"{type(e).__name__}: {e}"
            f.write(json.dumps(line, ensure_ascii=True) + "\n")
    contexts = json.loads((HERE / "contexts.json").read_text(encoding="utf-8"))
    with open(HERE / "chat_template_vectors.jsonl", "w", encoding="utf-8") as f:
        for path in sorted((HERE / "templates").glob("*.jinja")):
            for name, context in contexts.items():
                line = {"template": path.name, "context": name}
                try:
                    line["expected"] = env.from_string(path.read_text(encoding="utf-8")).render(**context)
                except Exception as e:
                    line["error"] = f"{type(e).__name__}: {e}"
                f.write(json.dumps(line, ensure_ascii=True) + "\n")


main()
