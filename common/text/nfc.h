/* common/text/nfc.h - Unicode normalisation form C: combining characters are ordered and composed.
 *
 * Unicode 14 (nfc_table.h). Time linear in the text, whatever it holds. */
#ifndef SLUICE_COMMON_TEXT_NFC_H
#define SLUICE_COMMON_TEXT_NFC_H

#include "common/base/buf.h"

/* Appends text[0..n), which must be valid UTF-8, in NFC: at most 3 times as long. SL_ETOOBIG (out is full),
 * SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_nfc_append(const char *text, size_t n, struct sl_buf *out);

#endif
