/* The intrusive list of common/base/list.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/base/list.h"

struct item {
    int number;
    struct sl_list link;
};

static int numbers(struct sl_list *head)
{
    int all = 0;
    SL_LIST_FOREACH (pos, head)
        all = all * 10 + SL_CONTAINER_OF(pos, struct item, link)->number;
    return all;
}

static void add_both_ends_keep_order(void **state)
{
    (void)state;
    struct sl_list head;
    sl_list_init(&head);
    assert_true(sl_list_empty(&head));
    assert_int_equal(numbers(&head), 0);
    struct item items[] = {{.number = 1}, {.number = 2}, {.number = 3}};
    sl_list_add_tail(&head, &items[1].link);
    sl_list_add_tail(&head, &items[2].link);
    sl_list_add_head(&head, &items[0].link);
    assert_false(sl_list_empty(&head));
    assert_int_equal(numbers(&head), 123);
    assert_ptr_equal(head.prev, &items[2].link);
    assert_ptr_equal(items[2].link.prev, &items[1].link);
}

static void remove_twice_is_harmless(void **state)
{
    (void)state;
    struct sl_list head;
    sl_list_init(&head);
    struct item items[] = {{.number = 1}, {.number = 2}, {.number = 3}};
    for (int i = 0; i < 3; i++)
        sl_list_add_tail(&head, &items[i].link);
    sl_list_remove(&items[1].link);
    sl_list_remove(&items[1].link);
    assert_int_equal(numbers(&head), 13);
    assert_true(sl_list_empty(&items[1].link));
    sl_list_add_tail(&head, &items[1].link);
    assert_int_equal(numbers(&head), 132);
}

static void foreach_safe_every_element_may_leave(void **state)
{
    (void)state;
    struct sl_list head, odd;
    sl_list_init(&head);
    sl_list_init(&odd);
    struct item items[5];
    for (int i = 0; i < 5; i++) {
        items[i].number = i + 1;
        sl_list_add_tail(&head, &items[i].link);
    }
    SL_LIST_FOREACH_SAFE (pos, tmp, &head) {
        if (SL_CONTAINER_OF(pos, struct item, link)->number % 2) {
            sl_list_remove(pos);
            sl_list_add_tail(&odd, pos);
        }
    }
    assert_int_equal(numbers(&head), 24);
    assert_int_equal(numbers(&odd), 135);
    SL_LIST_FOREACH_SAFE (pos, tmp, &head)
        sl_list_remove(pos);
    assert_true(sl_list_empty(&head));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(add_both_ends_keep_order),
        cmocka_unit_test(remove_twice_is_harmless),
        cmocka_unit_test(foreach_safe_every_element_may_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
