/* tests/support/support.h - what tests of several folders need: files, stderr, functions that must die.
 *
 * Failures of the helpers themselves (no temporary folder, no pipe) end the test program by SL_ASSERT. */
#ifndef SLUICE_TESTS_SUPPORT_SUPPORT_H
#define SLUICE_TESTS_SUPPORT_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>

/* Writes n bytes to a new file in TMPDIR (or /tmp) and returns its path; the caller unlinks and sl_free()s
 * it. */
char *sl_test_temp_file(const void *bytes, size_t n);

/* Removes a folder and all in it, symbolic links as such. 0, or -1 with errno. */
int sl_test_remove_tree(const char *path);

/* The whole file with a NUL behind it, or NULL when there is none; sl_free. n may be NULL. */
char *sl_test_read_file(const char *path, size_t *n);

/* Runs fn(arg) with stderr going to a file; returns what was written (sl_free). */
char *sl_test_capture_stderr(void (*fn)(void *), void *arg);

/* Runs fn(arg) in a forked child that writes no core; returns the signal that ended it, 0 when it came back.
 * *text (when not NULL) is what it wrote to stderr (sl_free). Only from a test that has started no thread. */
int sl_test_dies(void (*fn)(void *), void *arg, char **text);

/* A generator for seeded random tests: the next number of *state (splitmix64). */
unsigned long long sl_test_random(unsigned long long *state);

#endif
