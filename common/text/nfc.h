/* common/text/nfc.h - Unicode normalisation form C: combining characters are ordered and composed.
 *
 * With the tables of Hugging Face's tokenizers, which know Unicode up to about version 9 (nfc_table.h): the
 * models' own tokenizers are followed, not the newest standard. Time linear in the text, whatever it holds.
 */
#ifndef SLUICE_COMMON_TEXT_NFC_H
#define SLUICE_COMMON_TEXT_NFC_H

#include "common/base/buf.h"

/* Appends text[0..n), which must be valid UTF-8, in NFC: at most 3 times as long. SL_ETOOBIG (out is full),
 * SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_nfc_append(const char *text, size_t n, struct sl_buf *out);

#endif
