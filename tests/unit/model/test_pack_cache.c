/* common/model/pack_cache: what was saved comes back, anything else is packed again, and no fault of the disk
 * stops a model from opening. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/mem.h"
#include "common/model/model_digest.h"
#include "common/model/weights.h"
#include "tests/support/support.h"
#include "tests/unit/model/model_rig.h"

static char *path; /* of the model */
static char root[] = "/tmp/sluice-pack-XXXXXX";

struct setup {
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    struct sl_model_file *file;
    struct sl_model_conf conf;
    struct sl_weights_source from;
};

static void setup_open(struct setup *s, const char *dir)
{
    struct sl_why why = {{0}};
    assert_int_equal(sl_backend_find("auto", &s->ops, &why), SL_OK);
    assert_int_equal(s->ops->open(&(struct sl_dev_conf){.n_threads = 2, .max_rows = 8}, &s->dev, &why),
                     SL_OK);
    assert_int_equal(sl_model_file_open(path, &s->file, &why), SL_OK);
    assert_int_equal(sl_model_conf_read(s->file, &s->conf, &why), SL_OK);
    s->conf.digest = sl_model_digest(s->file, &s->conf, 1, NULL);
    s->from = (struct sl_weights_source){
        .file = s->file, .conf = &s->conf, .share = {0, 1}, .n_threads = 2, .cache_dir = dir};
}

static void setup_close(struct setup *s)
{
    sl_model_file_close(s->file);
    s->ops->close(s->dev);
}

static uint64_t digest_of(const struct setup *s, const struct sl_weights *w)
{
    struct sl_digest64_stream *d = sl_digest64_new(0);
    for (size_t i = 0; i < w->n_items; i++) {
        struct sl_weight_image image;
        s->ops->weight_image(w->items[i].weight, &image);
        sl_digest64_update(d, image.head, image.head_bytes);
        for (uint32_t p = 0; p < image.n_parts; p++)
            sl_digest64_update(d, image.parts[p].p, image.parts[p].bytes);
    }
    return sl_digest64_end(d);
}

static struct sl_pack_save save_of(const struct setup *s, const struct sl_weights *w)
{
    struct sl_pack_save save = {.dir = s->from.cache_dir,
                                .ops = s->ops,
                                .items = w->items,
                                .n_items = w->n_items,
                                .max_bytes = SL_PACK_CACHE_MAX_BYTES,
                                .keep_free_bytes = 0};
    sl_pack_key_of(&s->conf.digest, s->ops, 1, &save.key);
    return save;
}

/* Loads, and saves where that is needed; the digest of what is in memory. */
static uint64_t load_and_save(const char *dir, bool want_cached)
{
    struct setup s;
    struct sl_weights w;
    struct sl_why why = {{0}};
    setup_open(&s, dir);
    if (sl_weights_load(&w, &s.from, s.ops, s.dev, &why) != SL_OK)
        fail_msg("%s", why.text);
    assert_int_equal(w.from_cache, want_cached);
    uint64_t digest = digest_of(&s, &w);
    if (!w.from_cache && dir) {
        const struct sl_pack_save save = save_of(&s, &w);
        if (sl_pack_cache_save(&save, 1, NULL, &why) != SL_OK)
            fail_msg("%s", why.text);
    }
    sl_weights_free(&w);
    setup_close(&s);
    return digest;
}

static char *folder(const char *name)
{
    return sl_xasprintf("%s/%s", root, name);
}

/* The one file in a folder; NULL when it is empty. Temporary files count. */
static char *only_file(const char *dir)
{
    DIR *d = opendir(dir);
    char *found = NULL;
    for (struct dirent *at; d && (at = readdir(d)) != NULL;) {
        if (strcmp(at->d_name, ".") != 0 && strcmp(at->d_name, "..") != 0) {
            assert_null(found);
            found = sl_xasprintf("%s/%s", dir, at->d_name);
        }
    }
    if (d)
        closedir(d);
    return found;
}

static void second_load_is_from_the_cache_and_the_same_bytes(void **state)
{
    (void)state;
    char *dir = folder("again");
    uint64_t packed = load_and_save(NULL, false);
    assert_true(load_and_save(dir, false) == packed);
    assert_true(load_and_save(dir, true) == packed);
    assert_true(load_and_save(dir, true) == packed);
    sl_free(dir);
}

static void flip(const char *file, long at)
{
    FILE *f = fopen(file, "r+");
    assert_non_null(f);
    fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    int c = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(c ^ 4, f);
    fclose(f);
}

static void damage_anywhere_is_seen_and_the_entry_is_made_anew(void **state)
{
    (void)state;
    /* header: magic, version, number of records, key, its digest; table: a name, a head, an offset; numbers
     */
    static const long places[] = {0, 8, 12, 40, 190, 210, 380, 640, 4096 * 3, -1};
    char *dir = folder("damage");
    uint64_t packed = load_and_save(dir, false);
    for (size_t i = 0; i < SL_COUNTOF(places); i++) {
        char *file = only_file(dir);
        assert_non_null(file);
        flip(file, places[i]);
        sl_free(file);
        if (load_and_save(dir, false) != packed)
            fail_msg("damage at %ld", places[i]);
        assert_true(load_and_save(dir, true) == packed);
    }
    static const long lengths[] = {0, 1, 100, 300, 5000, -1, -5000};
    for (size_t i = 0; i < SL_COUNTOF(lengths); i++) {
        char *file = only_file(dir);
        struct stat st;
        assert_int_equal(stat(file, &st), 0);
        assert_int_equal(truncate(file, lengths[i] < 0 ? st.st_size + lengths[i] : lengths[i]), 0);
        sl_free(file);
        assert_true(load_and_save(dir, false) == packed);
        assert_true(load_and_save(dir, true) == packed);
    }
    sl_free(dir);
}

static void entry_of_another_key_is_not_taken(void **state)
{
    (void)state;
    char *dir = folder("key");
    uint64_t packed = load_and_save(dir, false);
    struct setup s;
    setup_open(&s, dir);
    struct sl_backend_ops other = *s.ops;
    struct sl_weights w;
    struct sl_why why = {{0}};
    other.pack_version++; /* layouts of another build */
    assert_int_equal(sl_weights_load(&w, &s.from, &other, s.dev, &why), SL_OK);
    assert_false(w.from_cache);
    sl_weights_free(&w);
    s.conf.digest.lo ^= 1; /* another model */
    assert_int_equal(sl_weights_load(&w, &s.from, s.ops, s.dev, &why), SL_OK);
    assert_false(w.from_cache);
    sl_weights_free(&w);
    setup_close(&s);

    /* the right name, but the key inside is another's: as a collision of names would be */
    char *file = only_file(dir);
    FILE *f = fopen(file, "r+");
    uint8_t head[200];
    assert_int_equal(fread(head, 1, 192, f), 192);
    head[40] ^= 1;
    uint64_t digest = sl_digest64(head, 192, 0);
    memcpy(head + 192, &digest, 8);
    rewind(f);
    assert_int_equal(fwrite(head, 1, 200, f), 200);
    fclose(f);
    assert_true(load_and_save(dir, false) == packed);
    assert_true(load_and_save(dir, true) == packed);
    sl_free(file);
    sl_free(dir);
}

static void expect_not_saved(const struct sl_pack_save *save, size_t n, enum sl_err want, const char *said)
{
    struct sl_why why = {{0}};
    enum sl_err e = sl_pack_cache_save(save, n, NULL, &why);
    if (e != want || !strstr(why.text, said))
        fail_msg("got %s \"%s\", expected %s with \"%s\"", sl_err_name(e), why.text, sl_err_name(want), said);
}

static void bounds_and_faults_of_the_disk_leave_nothing_behind(void **state)
{
    (void)state;
    char *dir = folder("full"), *file = folder("file");
    struct setup s;
    struct sl_weights w;
    struct sl_why why = {{0}};
    setup_open(&s, dir);
    assert_int_equal(sl_weights_load(&w, &s.from, s.ops, s.dev, &why), SL_OK);
    struct sl_pack_save save = save_of(&s, &w);
    save.max_bytes = 1000;
    expect_not_saved(&save, 1, SL_ETOOBIG, "MiB");
    save.max_bytes = SL_PACK_CACHE_MAX_BYTES;
    save.keep_free_bytes = UINT64_MAX;
    expect_not_saved(&save, 1, SL_ETOOBIG, "free");
    save.keep_free_bytes = 0;
    atomic_bool stop;
    atomic_init(&stop, true);
    assert_int_equal(sl_pack_cache_save(&save, 1, &stop, &why), SL_EAGAIN);

    struct rlimit old, small = {30000, 30000}; /* as a full disk: a write in the middle fails */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum sl_err e = sl_pack_cache_save(&save, 1, NULL, &why);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(e, SL_EIO);
    assert_null(only_file(dir));

    FILE *f = fopen(file, "w"); /* a folder that cannot be */
    assert_non_null(f);
    fclose(f);
    save.dir = file;
    expect_not_saved(&save, 1, SL_EIO, file);
    sl_weights_free(&w);
    setup_close(&s);
    sl_free(dir);
    sl_free(file);
}

static bool is_saved(const struct sl_pack_save *save)
{
    struct sl_pack_cache *entry = sl_pack_cache_open(save->dir, &save->key);
    bool saved = entry != NULL;
    sl_pack_cache_close(entry);
    return saved;
}

/* As the ranks of one model: each alone would fit, and pushed the other out. */
static void entries_saved_together_fit_together_or_are_not_begun(void **state)
{
    (void)state;
    char *dir = folder("ranks");
    struct setup s;
    struct sl_weights w;
    struct sl_why why = {{0}};
    struct stat st;
    setup_open(&s, dir);
    assert_int_equal(sl_weights_load(&w, &s.from, s.ops, s.dev, &why), SL_OK);
    struct sl_pack_save old = save_of(&s, &w), both[2] = {old, old};
    for (int i = 0; i < 2; i++)
        snprintf(both[i].key.text, sizeof both[i].key.text, "rank %d", i);
    assert_int_equal(sl_pack_cache_save(&old, 1, NULL, &why), SL_OK);
    char *file = only_file(dir);
    assert_int_equal(stat(file, &st), 0);
    both[0].max_bytes = both[1].max_bytes = 2 * (uint64_t)st.st_size - 1;
    expect_not_saved(both, 2, SL_ETOOBIG, "2 files");
    assert_true(is_saved(&old) && !is_saved(&both[0]) && !is_saved(&both[1]));
    both[0].max_bytes = both[1].max_bytes = 2 * (uint64_t)st.st_size;
    assert_int_equal(sl_pack_cache_save(both, 2, NULL, &why), SL_OK);
    assert_true(!is_saved(&old) && is_saved(&both[0]) && is_saved(&both[1]));
    sl_weights_free(&w);
    setup_close(&s);
    sl_free(file);
    sl_free(dir);
}

static struct sl_pack_saver *start_saver(const struct setup *s, const struct sl_weights *w)
{
    struct sl_pack_save save;
    assert_true(sl_weights_to_save(w, &s->from, &save));
    return sl_pack_saver_start(&save, 1);
}

static void folder_without_write_permission_costs_nothing_but_the_cache(void **state)
{
    (void)state;
    struct setup s;
    struct sl_weights w;
    struct sl_why why = {{0}};
    setup_open(&s, "/proc/sluice"); /* nobody can make a folder there, root neither */
    assert_int_equal(sl_weights_load(&w, &s.from, s.ops, s.dev, &why), SL_OK);
    struct sl_pack_saver *saver = start_saver(&s, &w);
    sl_pack_saver_end(saver);
    sl_weights_free(&w);
    setup_close(&s);
}

static void starts_at_once_do_not_harm_each_other(void **state)
{
    (void)state;
    enum { STARTS = 4 };
    char *dir = folder("race");
    pid_t pid[STARTS];
    uint64_t packed = load_and_save(NULL, false);
    for (int i = 0; i < STARTS; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] > 0)
            continue;
        bool good = true;
        for (int round = 0; round < 3; round++) {
            struct setup s;
            struct sl_weights w;
            struct sl_why why;
            setup_open(&s, dir);
            good = good && sl_weights_load(&w, &s.from, s.ops, s.dev, &why) == SL_OK &&
                   digest_of(&s, &w) == packed;
            const struct sl_pack_save save = save_of(&s, &w);
            good = good && sl_pack_cache_save(&save, 1, NULL, &why) == SL_OK;
            sl_weights_free(&w);
            setup_close(&s);
        }
        _exit(good ? 0 : 1);
    }
    for (int i = 0; i < STARTS; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_int_equal(status, 0);
    }
    char *file = only_file(dir);
    assert_non_null(file);
    assert_true(load_and_save(dir, true) == packed);
    sl_free(file);
    sl_free(dir);
}

static void saver_writes_in_the_background(void **state)
{
    (void)state;
    char *dir = folder("saver");
    struct setup s;
    struct sl_weights w;
    struct sl_why why = {{0}};
    setup_open(&s, dir);
    assert_int_equal(sl_weights_load(&w, &s.from, s.ops, s.dev, &why), SL_OK);
    uint64_t packed = digest_of(&s, &w);
    struct sl_pack_saver *saver = start_saver(&s, &w);
    const struct sl_pack_save save = save_of(&s, &w);
    struct sl_pack_cache *entry;
    while ((entry = sl_pack_cache_open(dir, &save.key)) == NULL)
        usleep(1000);
    sl_pack_cache_close(entry);
    sl_pack_saver_end(saver);
    sl_weights_free(&w);
    setup_close(&s);
    assert_true(load_and_save(dir, true) == packed);
    sl_free(dir);
}

static int make(void **state)
{
    (void)state;
    struct sl_make_model m;
    if (!mkdtemp(root) || !sl_make_model_preset("tiny", &m))
        return -1;
    m.tied = false;
    path = rig_model_file(&m);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    unlink(path);
    sl_free(path);
    return sl_test_remove_tree(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_load_is_from_the_cache_and_the_same_bytes),
        cmocka_unit_test(damage_anywhere_is_seen_and_the_entry_is_made_anew),
        cmocka_unit_test(entry_of_another_key_is_not_taken),
        cmocka_unit_test(bounds_and_faults_of_the_disk_leave_nothing_behind),
        cmocka_unit_test(entries_saved_together_fit_together_or_are_not_begun),
        cmocka_unit_test(folder_without_write_permission_costs_nothing_but_the_cache),
        cmocka_unit_test(starts_at_once_do_not_harm_each_other),
        cmocka_unit_test(saver_writes_in_the_background),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
