/* router/ui/ui_files.h - the files of /ui, put into the program when it is built (embed.cmake). */
#ifndef SLUICE_ROUTER_UI_UI_FILES_H
#define SLUICE_ROUTER_UI_UI_FILES_H

#include <stddef.h>

struct sl_ui_file {
    const char *name, *content_type;
    const unsigned char *bytes;
    size_t n_bytes;
};
extern const struct sl_ui_file sl_ui_files[];
extern const size_t sl_n_ui_files;

#endif
