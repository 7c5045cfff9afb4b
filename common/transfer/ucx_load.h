/* common/transfer/ucx_load.h - the functions of UCX that link_ucx.c calls, loaded when the first link opens.
 *
 * Not linked, because the libraries act when they are loaded, by what the environment says at that moment:
 * they take over signals (SIGHUP, SIGSEGV ...) and patch mmap and madvise in the whole process, which ends a
 * program under ThreadSanitizer. Loaded late, they find the settings this process wants; and a node without
 * UCX pages, or a program that only contains this folder, is left alone. */
#ifndef SLUICE_COMMON_TRANSFER_UCX_LOAD_H
#define SLUICE_COMMON_TRANSFER_UCX_LOAD_H

#include <ucp/api/ucp.h>

#include "common/base/err.h"

/* Each has the type and the contract of the function it is named after: ucp_..., ucs_status_string. */
struct sl_ucx {
    __typeof__(ucp_config_read) *config_read;
    __typeof__(ucp_config_modify) *config_modify;
    __typeof__(ucp_config_release) *config_release;
    __typeof__(ucp_init_version) *init_version;
    __typeof__(ucp_cleanup) *cleanup;
    __typeof__(ucp_context_query) *context_query;
    __typeof__(ucp_mem_map) *mem_map;
    __typeof__(ucp_mem_unmap) *mem_unmap;
    __typeof__(ucp_worker_create) *worker_create;
    __typeof__(ucp_worker_destroy) *worker_destroy;
    __typeof__(ucp_worker_get_efd) *worker_get_efd;
    __typeof__(ucp_worker_arm) *worker_arm;
    __typeof__(ucp_worker_progress) *worker_progress;
    __typeof__(ucp_worker_set_am_recv_handler) *worker_set_am_recv_handler;
    __typeof__(ucp_listener_create) *listener_create;
    __typeof__(ucp_listener_query) *listener_query;
    __typeof__(ucp_listener_reject) *listener_reject;
    __typeof__(ucp_listener_destroy) *listener_destroy;
    __typeof__(ucp_ep_create) *ep_create;
    __typeof__(ucp_ep_close_nbx) *ep_close_nbx;
    __typeof__(ucp_am_send_nbx) *am_send_nbx;
    __typeof__(ucp_am_recv_data_nbx) *am_recv_data_nbx;
    __typeof__(ucp_request_check_status) *request_check_status;
    __typeof__(ucp_request_free) *request_free;
    __typeof__(ucs_status_string) *status_string;
};

extern struct sl_ucx sl_ucx; /* after sl_ucx_load() */

/* Any number of times, from any thread. SL_ECONFIG: UCX is not installed, or another version of it. */
SL_MUST_CHECK enum sl_err sl_ucx_load(struct sl_why *why);

#endif
