/* common/base/spin_wait.h - waits for a word that another thread is about to change: some spinning, then the kernel.
 *
 * For hand-overs of microseconds. Whoever waits may sleep, so whoever changes the word says so with sl_word_wake(),
 * which costs a system call; where it is known that nobody sleeps it may be left out. */
#ifndef SLUICE_COMMON_BASE_SPIN_WAIT_H
#define SLUICE_COMMON_BASE_SPIN_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Until *at != value; false when that took longer than a wake-up would. */
bool sl_word_spin(_Atomic uint32_t *at, uint32_t value);
/* Sleeps while *at == value; may come back early. */
void sl_word_sleep(_Atomic uint32_t *at, uint32_t value);
void sl_word_wake(_Atomic uint32_t *at); /* all that sleep */

#endif
