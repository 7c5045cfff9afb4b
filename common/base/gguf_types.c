/* common/base/gguf_types.c - ggml's tensor element types: id, name, block size.
 *
 * The whole table is kept, not only what the kernels read, so that a file with another type is refused by its
 * name and its size is still checked. Source: ggml's type traits as published in the Python package gguf
 * 0.19. */
#include "common/base/gguf.h"

#include <stdio.h>
#include <string.h>

static const struct sl_ggml_type types[] = {
    {0, "F32", 1, 4, true},          {1, "F16", 1, 2, true},          {2, "Q4_0", 32, 18, true},
    {3, "Q4_1", 32, 20, true},       {6, "Q5_0", 32, 22, false},      {7, "Q5_1", 32, 24, false},
    {8, "Q8_0", 32, 34, true},       {9, "Q8_1", 32, 40, false},      {10, "Q2_K", 256, 84, false},
    {11, "Q3_K", 256, 110, false},   {12, "Q4_K", 256, 144, false},   {13, "Q5_K", 256, 176, false},
    {14, "Q6_K", 256, 210, false},   {15, "Q8_K", 256, 292, false},   {16, "IQ2_XXS", 256, 66, false},
    {17, "IQ2_XS", 256, 74, false},  {18, "IQ3_XXS", 256, 98, false}, {19, "IQ1_S", 256, 50, false},
    {20, "IQ4_NL", 32, 18, false},   {21, "IQ3_S", 256, 110, false},  {22, "IQ2_S", 256, 82, false},
    {23, "IQ4_XS", 256, 136, false}, {24, "I8", 1, 1, false},         {25, "I16", 1, 2, false},
    {26, "I32", 1, 4, false},        {27, "I64", 1, 8, false},        {28, "F64", 1, 8, false},
    {29, "IQ1_M", 256, 56, false},   {30, "BF16", 1, 2, true},        {34, "TQ1_0", 256, 54, false},
    {35, "TQ2_0", 256, 66, false},   {39, "MXFP4", 32, 17, false},    {40, "NVFP4", 64, 36, false},
    {41, "Q1_0", 128, 18, false},
};

const struct sl_ggml_type *sl_ggml_type_info(uint32_t id)
{
    for (size_t i = 0; i < SL_COUNTOF(types); i++)
        if (types[i].id == id)
            return &types[i];
    return NULL;
}

enum sl_err sl_gguf_tensor_supported(const struct sl_gguf *g, const struct sl_gguf_tensor *t,
                                     struct sl_why *why)
{
    const struct sl_ggml_type *type = sl_ggml_type_info(t->type);
    if (type && type->supported)
        return SL_OK;
    char list[128] = "";
    size_t len = 0;
    for (size_t i = 0; i < SL_COUNTOF(types); i++)
        if (types[i].supported)
            len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", len ? ", " : "", types[i].name);
    return sl_why_set(
        why, SL_EUNSUPPORTED,
        "%s: tensor %s has type %s, which is not supported yet; supported: %s; convert the model to "
        "one of these",
        sl_gguf_path(g), t->name, type ? type->name : "unknown", list);
}
