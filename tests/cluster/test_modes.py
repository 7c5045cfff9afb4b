"""The three modes answer alike, over the plain API, the openai client and sluice-bench equal."""
import datetime
import json
import subprocess
import unittest

import harness
from harness import Cluster, at, prompt_of, wait_for


class Modes(unittest.TestCase):
    def three_modes_agree(self, *node_options):
        with Cluster(node_options=node_options) as c:
            prompt = prompt_of(100)
            answers = {}
            for mode in ("colocated", "pd", "hybrid"):
                headers = {**at("d0", None if mode == "colocated" else "p0"), **({"X-Sluice-Split": "48"} if mode == "hybrid" else {})}
                tokens, doc = c.complete(prompt, 24, mode, {"X-Sluice-Digest": "1", **headers}, cache_salt=mode)
                record = c.record(doc["id"])
                answers[mode] = (tokens, doc["sluice"]["digests"])
                self.assertEqual(record["s"], {"colocated": "0", "pd": "100", "hybrid": "48"}[mode])
                self.assertEqual(record["pages_received"], {"colocated": "0", "pd": "7", "hybrid": "3"}[mode])
                self.assertEqual(len(tokens), 24)
            self.assertEqual(answers["colocated"], answers["pd"])
            self.assertEqual(answers["colocated"], answers["hybrid"])
            c.wait_idle()
            if "--tensor-parallel" in node_options:
                other = c.start_node("other", "sluice-prefill", ["--tensor-parallel", "1"])
                wait_for("the router's refusal", lambda: "the router refused this node" in other.log())
                self.assertIn("Node other has tensor_parallel 1, node ", other.log())
            return answers["pd"]

    def test_three_modes_give_the_same_tokens_and_records_show_it(self):
        # of which kind the nodes were shows in the logits' digests
        kinds = [self.three_modes_agree(*options) for options in ((), ("--kv-dtype", "q8"), ("--tensor-parallel", "2", "--threads", "2"))]
        self.assertEqual(len({tuple(digests) for _, digests in kinds}), 3)

    def test_hits_are_told_and_shorten_what_they_can(self):
        with Cluster(prefill=2) as c:
            prompt, split = prompt_of(100), {"X-Sluice-Split": "48"}

            def ask(node, salt, mode="hybrid"):
                tokens, doc = c.complete(prompt, 4, mode, {**(split if mode == "hybrid" else {}), **at("d0", node)}, cache_salt=salt)
                return tokens, doc["usage"]["prompt_tokens_details"]["cached_tokens"], c.record(doc["id"])

            want, cached, record = ask("p0", "a")
            self.assertEqual((cached, record["pages_sent"]), (0, "3"))
            got, cached, record = ask("p1", "a")  # D has all of it: p1 is not needed
            self.assertEqual((got, cached, record["pages_sent"], record["cached_tokens_D"]), (want, 96, "0", "96"))
            # D lacks the last page only, p0 has the first three. The answer waits for P's report of them, but not for ever: the record has it.
            got, _, record = ask("p0", "a", "pd")
            self.assertEqual((got, record["pages_sent"], record["cached_tokens_P"]), (want, "1", "48"))
            c.wait_idle()

    def test_choices_are_alike_in_all_modes(self):
        with Cluster() as c:
            prompts = [prompt_of(70), prompt_of(33, seed=2)]
            each = {}
            for mode in ("colocated", "pd", "hybrid"):
                _, whole = c.complete(prompts, 12, mode, n=3, cache_salt=mode)
                each[mode] = [choice["token_ids"] for choice in whole["choices"]]
                self.assertEqual(whole["usage"]["prompt_tokens"], 103)
                self.assertEqual(whole["usage"]["completion_tokens"], 72)
            self.assertEqual(each["colocated"], each["pd"])
            self.assertEqual(each["colocated"], each["hybrid"])
            self.assertEqual(len({tuple(t) for t in each["pd"]}), 6)
            alone = [c.complete(p, 12, cache_salt="alone")[0] for p in prompts]
            self.assertEqual(alone, [each["pd"][0], each["pd"][3]])
            c.wait_idle()

    def test_answers_that_have_to_fit_a_schema_do_in_all_modes(self):
        schema = {"type": "object", "required": ["ok", "n", "tag", "list", "id", "day"], "properties": {
            "id": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}\"?$"}, "day": {"type": "string", "format": "date"}, "ok": {"type": "boolean"}, "n": {"type": "integer"}, "tag": {"enum": ["red", "green"]},
            "list": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2}}}
        with Cluster() as c:
            each = {}
            for mode in ("colocated", "pd", "hybrid"):
                body = {"model": "tiny", "prompt": prompt_of(70), "max_tokens": 400, "temperature": 1.5, "seed": 3, "n": 2, "cache_salt": mode,
                        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}}
                status, doc, _ = c.status("/v1/completions", body, {"X-Sluice-Mode": mode})
                self.assertEqual(status, 200, doc)
                each[mode] = [choice["text"] for choice in doc["choices"]]
                for choice in doc["choices"]:
                    self.assertEqual(choice["finish_reason"], "stop")
                    answer = json.loads(choice["text"])
                    self.assertEqual(list(answer), ["id", "day", "ok", "n", "tag", "list"])
                    self.assertRegex(answer["id"], r'^[A-Z]{2}-\d{3}"?$')
                    datetime.date.fromisoformat(answer["day"])
                    self.assertIsInstance(answer["ok"], bool)
                    self.assertIsInstance(answer["n"], int)
                    self.assertIn(answer["tag"], ("red", "green"))
                    self.assertTrue(len(answer["list"]) <= 2 and all(len(s) <= 3 for s in answer["list"]))
            self.assertEqual(each["colocated"], each["pd"])
            self.assertEqual(each["colocated"], each["hybrid"])
            c.wait_idle()

    def test_an_answer_that_has_to_match_an_expression_does_in_all_modes(self):
        with Cluster() as c:
            each = {}
            for mode in ("colocated", "pd", "hybrid"):
                body = {"model": "tiny", "prompt": prompt_of(70), "max_tokens": 400, "temperature": 1.5, "seed": 3, "n": 2, "cache_salt": mode,
                        "structured_outputs": {"regex": r"(yes|no), (?!.*é)[^\x00-\x1f]{20,40}\."}}
                status, doc, _ = c.status("/v1/completions", body, {"X-Sluice-Mode": mode})
                self.assertEqual(status, 200, doc)
                each[mode] = [choice["text"] for choice in doc["choices"]]
                for choice in doc["choices"]:
                    self.assertEqual(choice["finish_reason"], "stop")
                    self.assertRegex(choice["text"], r"\A(yes|no), [^\x00-\x1f]{20,40}\.\Z")
            self.assertEqual(each["colocated"], each["pd"])
            self.assertEqual(each["colocated"], each["hybrid"])
            c.wait_idle()

    def test_calls_that_have_to_come_do_in_all_modes(self):
        number = {"type": "object", "properties": {"n": {"$ref": "#/$defs/small"}}, "required": ["n"], "$defs": {"small": {"enum": [1, 2, 3]}}}
        tools = [{"type": "function", "function": {"name": "add", "strict": True, "parameters": number}}, {"type": "function", "function": {"name": "now",
                 "parameters": {"type": "object", "properties": {"zone": {"type": "boolean"}}, "additionalProperties": False}}}]
        with Cluster(model_options=["--tools"]) as c:
            each = {}
            for mode in ("colocated", "pd", "hybrid"):
                for choice in ("required", {"type": "function", "function": {"name": "add"}}):
                    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello " * 40}], "max_tokens": 400, "temperature": 1.5, "seed": 5,
                            "tools": tools, "tool_choice": choice, "parallel_tool_calls": False, "cache_salt": mode}
                    status, doc, _ = c.status("/v1/chat/completions", body, {"X-Sluice-Mode": mode})
                    self.assertEqual(status, 200, doc)
                    answer = doc["choices"][0]
                    self.assertEqual(answer["finish_reason"], "tool_calls", answer)
                    (call,) = answer["message"]["tool_calls"]
                    self.assertFalse(answer["message"]["content"])
                    arguments = json.loads(call["function"]["arguments"])
                    if choice != "required" or call["function"]["name"] == "add":
                        self.assertEqual(call["function"]["name"], "add")
                        self.assertIn(arguments["n"], (1, 2, 3))
                    each.setdefault(mode, []).append((call["function"]["name"], arguments))
            self.assertEqual(each["colocated"], each["pd"])
            self.assertEqual(each["colocated"], each["hybrid"])
            c.wait_idle()

    def test_calls_of_its_own_will_fit_strict_tools_in_all_modes(self):
        number = {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"], "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": "add", "strict": True, "parameters": number}}]
        with Cluster(model_options=["--tools"]) as c:
            _, doc, _ = c.status("/tokenize", {"content": "<tool_call>"})
            (mark,) = doc["tokens"]
            # the random model seldom says the mark without a bias, and with the largest one it says nothing else where text is free
            for bias, parallel in ((0, True), (9, True), (100, False)):
                each = {}
                for mode in ("colocated", "pd", "hybrid"):
                    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello " * 40}], "max_tokens": 300, "temperature": 1.5, "seed": 5, "n": 3,
                            "tools": tools, "parallel_tool_calls": parallel, "cache_salt": mode, "logit_bias": {str(mark): bias}}
                    status, doc, _ = c.status("/v1/chat/completions", body, {"X-Sluice-Mode": mode})
                    self.assertEqual(status, 200, doc)
                    each[mode] = [(choice["finish_reason"], choice["message"]["content"],
                                   [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in choice["message"].get("tool_calls") or []])
                                  for choice in doc["choices"]]
                    calls = [call for _, _, made in each[mode] for call in made]
                    for name, arguments in calls:
                        self.assertEqual((name, list(arguments)), ("add", ["n"]))
                        self.assertIn(arguments["n"], (1, 2, 3))
                    if bias < 100:
                        self.assertTrue(any(content for _, content, _ in each[mode]), each[mode])
                    if bias > 0:
                        self.assertTrue(calls, each[mode])
                    if not parallel:
                        self.assertEqual([(reason, content, len(made)) for reason, content, made in each[mode]], 3 * [("tool_calls", None, 1)])
                self.assertEqual(each["colocated"], each["pd"])
                self.assertEqual(each["colocated"], each["hybrid"])
            c.wait_idle()

    def test_equal_finds_no_difference(self):
        with Cluster() as c:
            r = subprocess.run([harness.program("sluice-bench"), "equal", "--url", c.url, "--prompt-tokens", "9,70",
                                "--output-tokens", "6", "--chunks", "16,64,0"], capture_output=True, text=True)
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            c.wait_idle()

    def test_equal_finds_a_bit_flipped_on_the_wire_when_digests_are_off(self):
        with Cluster(node_options=["--digests", "false", "--fault-flip-bit", "1"]) as c:
            r = subprocess.run([harness.program("sluice-bench"), "equal", "--url", c.url, "--prompt-tokens", "70",
                                "--output-tokens", "6", "--chunks", "16", "--temperatures", "0"], capture_output=True, text=True)
            self.assertEqual(r.returncode, 1, r.stdout + r.stderr)
            self.assertRegex(r.stdout, "[1-9][0-9]* differences")

    def test_a_bit_flipped_on_the_wire_is_mended_when_digests_are_on(self):
        with Cluster(node_options=["--fault-flip-bit", "1"]) as c:
            want, _ = c.complete(prompt_of(70), 8, "colocated", cache_salt="a")
            got, doc = c.complete(prompt_of(70), 8, "pd", cache_salt="b")
            self.assertEqual(want, got)
            self.assertNotEqual(c.record(doc["id"])["resends"], "0")
            c.wait_idle()

    def test_openai_client_streaming_and_not(self):
        try:
            import openai
        except ImportError:
            self.skipTest("the openai package is not installed")
        with Cluster() as c:
            client = openai.OpenAI(base_url=c.url + "/v1", api_key="none")
            ask = dict(model="tiny", messages=[{"role": "user", "content": "Hello, who are you?"}], max_tokens=12, seed=3,
                       temperature=0.7)
            whole = client.chat.completions.create(**ask)
            text, finish, roles = "", [], []
            for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask):
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    if choice.delta.role:
                        roles.append(choice.delta.role)
                    if choice.finish_reason:
                        finish.append(choice.finish_reason)
                usage = chunk.usage
            self.assertEqual(text, whole.choices[0].message.content)
            self.assertEqual(finish, [whole.choices[0].finish_reason])
            self.assertEqual(roles, ["assistant"])
            self.assertEqual(usage.total_tokens, whole.usage.total_tokens)
            self.assertEqual([m.id for m in client.models.list()], ["tiny"])
            with self.assertRaises(openai.NotFoundError):
                client.chat.completions.create(**{**ask, "model": "other"})
            several = client.chat.completions.create(**{**ask, "n": 3})
            self.assertEqual([c.index for c in several.choices], [0, 1, 2])
            with self.assertRaises(openai.BadRequestError):
                client.chat.completions.create(**{**ask, "n": 129})


if __name__ == "__main__":
    unittest.main(verbosity=2)
