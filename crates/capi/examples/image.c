/* Makes an image, works in it, checks it: `image btrfs FILE`.
 *
 *     cc image.c $(pkg-config --cflags --libs libsapwood)
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <sapwood.h>

/* Ends the program if a call failed. */
static long checked(long result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s (%s)\n", what, sapwood_error_message(), strerror(-result));
		exit(1);
	}
	return result;
}
#define CHECKED(call) checked((call), #call)

/* Ends the program if a call did not fail with this errno and a message. */
static void expect(long result, int error, const char *what)
{
	if (result != -error || !*sapwood_error_message()) {
		fprintf(stderr, "%s: returned %ld, not %d\n", what, result, -error);
		exit(1);
	}
}
#define EXPECT(call, error) expect((call), (error), #call)

static void check(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "does not hold: %s\n", what);
		exit(1);
	}
}
#define CHECK(condition) check((condition), #condition)

static sapwood_fs *fs;

/* Appends a hundred lines to a file that all threads share. */
static void *append(void *file)
{
	for (int line = 0; line < 100; line++)
		CHECKED(sapwood_file_write(file, "one line\n", 9));
	EXPECT(sapwood_unlink(fs, "/missing"), ENOENT);
	return NULL;
}

static void use_files(void)
{
	sapwood_file *file;
	sapwood_stat_t stat;
	char buffer[64];

	CHECKED(sapwood_mkdir_all(fs, "etc/conf.d", 0755));
	CHECKED(sapwood_file_open(fs, "etc/hostname", O_RDWR | O_CREAT | O_EXCL, 0640, &file));
	CHECK(CHECKED(sapwood_file_write(file, "box\n", 4)) == 4);
	CHECK(CHECKED(sapwood_file_pwrite(file, "c", 1, 2)) == 1);
	CHECK(CHECKED(sapwood_file_seek(file, -2, SEEK_END)) == 2);
	CHECK(CHECKED(sapwood_file_read(file, buffer, sizeof buffer)) == 2);
	CHECK(memcmp(buffer, "c\n", 2) == 0);
	CHECK(CHECKED(sapwood_file_read(file, buffer, sizeof buffer)) == 0);
	CHECKED(sapwood_file_truncate(file, 1 << 20));
	CHECKED(sapwood_file_stat(file, &stat));
	CHECK(stat.size == 1 << 20 && stat.mode == (S_IFREG | 0640) && stat.nlink == 1);
	CHECKED(sapwood_file_sync(file));
	CHECKED(sapwood_file_close(file));

	EXPECT(sapwood_file_open(fs, "etc/hostname", O_WRONLY | O_CREAT | O_EXCL, 0, &file), EEXIST);
	CHECK(file == NULL);
	CHECKED(sapwood_file_open(fs, "etc/hostname", O_RDONLY, 0, &file));
	EXPECT(sapwood_file_write(file, "x", 1), EBADF);
	EXPECT(sapwood_file_pread(file, NULL, 1, 0), EFAULT);
	CHECKED(sapwood_file_close(file));
}

static void use_names(void)
{
	sapwood_stat_t stat;
	char buffer[64];

	CHECKED(sapwood_symlink(fs, "../etc/hostname", "etc/link"));
	CHECK(CHECKED(sapwood_readlink(fs, "etc/link", NULL, 0)) == 15);
	EXPECT(sapwood_readlink(fs, "etc/link", buffer, 3), ERANGE);
	CHECK(CHECKED(sapwood_readlink(fs, "etc/link", buffer, sizeof buffer)) == 15);
	CHECKED(sapwood_link(fs, "etc/hostname", "etc/\xff\xfe not utf-8"));
	CHECKED(sapwood_rename(fs, "etc/\xff\xfe not utf-8", "etc/\xff"));
	CHECKED(sapwood_stat(fs, "etc/link", &stat));
	CHECK(S_ISREG(stat.mode) && stat.nlink == 2);
	CHECKED(sapwood_lstat(fs, "etc/link", &stat));
	CHECK(S_ISLNK(stat.mode) && stat.size == 15);

	CHECKED(sapwood_chmod(fs, "etc/hostname", 0600));
	CHECKED(sapwood_chown(fs, "etc/hostname", 1000, UINT32_MAX));
	sapwood_time time = { .sec = -1, .nsec = 500000000 };
	CHECKED(sapwood_set_times(fs, "etc/hostname", NULL, &time));
	CHECKED(sapwood_stat(fs, "etc/hostname", &stat));
	CHECK(stat.uid == 1000 && (stat.mode & 07777) == 0600);
	CHECK(stat.mtime.sec == -1 && stat.mtime.nsec == 500000000);
	time.nsec = 1000000000;
	EXPECT(sapwood_set_times(fs, "etc/hostname", &time, NULL), EINVAL);

	CHECKED(sapwood_setxattr(fs, "etc/hostname", "user.colour", "\0green", 6));
	CHECK(CHECKED(sapwood_getxattr(fs, "etc/hostname", "user.colour", buffer, 64)) == 6);
	CHECK(memcmp(buffer, "\0green", 6) == 0);
	CHECK(CHECKED(sapwood_listxattr(fs, "etc/hostname", buffer, 64)) == 12);
	CHECK(strcmp(buffer, "user.colour") == 0);
	CHECKED(sapwood_removexattr(fs, "etc/hostname", "user.colour"));
	EXPECT(sapwood_getxattr(fs, "etc/hostname", "user.colour", buffer, 64), ENODATA);

	EXPECT(sapwood_mkdir(fs, "etc", 0755), EEXIST);
	EXPECT(sapwood_rmdir(fs, "etc"), ENOTEMPTY);
	EXPECT(sapwood_unlink(fs, "etc"), EISDIR);
	EXPECT(sapwood_stat(fs, NULL, &stat), EINVAL);
}

static void list(void)
{
	sapwood_dir *dir;
	sapwood_walk *walk;
	sapwood_entry entry;
	sapwood_stat_t stat;
	const char *path;
	int more, names = 0, not_text = 0, files = 0;

	CHECKED(sapwood_dir_open(fs, "etc", &dir));
	while ((more = CHECKED(sapwood_dir_next(dir, &entry)))) {
		names++;
		not_text += strcmp(entry.name, "\xff") == 0 && S_ISREG(entry.mode) && entry.ino != 0;
	}
	CHECKED(sapwood_dir_close(dir));
	CHECK(names == 4 && not_text == 1);

	CHECKED(sapwood_walk_open(fs, "/", &walk));
	while (CHECKED(sapwood_walk_next(walk, &path, &stat)))
		files += strncmp(path, "etc/", 4) == 0;
	CHECKED(sapwood_walk_close(walk));
	CHECK(files == 4);
	EXPECT(sapwood_dir_open(fs, "etc/hostname", &dir), ENOTDIR);
}

static void use_threads(void)
{
	pthread_t threads[4];
	sapwood_file *file;
	sapwood_stat_t stat;

	CHECKED(sapwood_file_open(fs, "log", O_WRONLY | O_CREAT | O_APPEND, 0644, &file));
	for (int each = 0; each < 4; each++)
		CHECK(pthread_create(&threads[each], NULL, append, file) == 0);
	for (int each = 0; each < 4; each++)
		pthread_join(threads[each], NULL);
	CHECKED(sapwood_file_stat(file, &stat));
	CHECK(stat.size == 4 * 100 * 9);
	CHECKED(sapwood_file_close(file));
}

/* The number of differences; if there are any, the last one is the name `link`. */
static size_t differing(const char *old, const char *new, sapwood_difference *last)
{
	sapwood_differences *found;
	size_t count;

	CHECKED(sapwood_diff(fs, old, fs, new, SAPWOOD_DIFF_CONTENT, &found));
	count = sapwood_differences_count(found);
	if (count > 0) {
		CHECKED(sapwood_differences_get(found, count - 1, last));
		CHECK(strcmp(last->path, "link") == 0 && last->from == NULL);
	}
	EXPECT(sapwood_differences_get(found, count, last), EINVAL);
	sapwood_differences_free(found);
	return count;
}

/* Copies and archives, and a second image that is made of them. */
static void transfer(const char *type, const char *image)
{
	char archive[4096], copy[4096], built[4096];
	sapwood_exported made;
	sapwood_difference last;
	sapwood_builder *builder;
	sapwood_fs *second;
	sapwood_stat_t stat;
	uint64_t size;

	snprintf(archive, sizeof archive, "%s.tar.gz", image);
	snprintf(copy, sizeof copy, "%s.copy", image);
	snprintf(built, sizeof built, "%s.built", image);
	CHECKED(sapwood_export(fs, "etc", archive, "gzip", NULL, NULL, 0, &made));
	CHECK(made.entries > 4 && made.damaged == 0 && made.left_out == 0 && made.size > 0);
	CHECK(memcmp(made.diff_id, made.digest, 32) != 0);
	EXPECT(sapwood_export(fs, "etc", archive, NULL, NULL, NULL, 0, NULL), EEXIST);
	EXPECT(sapwood_export(fs, "etc", archive, "lha", NULL, NULL, SAPWOOD_REPLACE, NULL), EINVAL);

	CHECKED(sapwood_mkdir(fs, "back", 0755));
	CHECKED(sapwood_copy(fs, "etc/hostname", NULL, copy, 0));
	CHECKED(sapwood_copy(NULL, copy, fs, "back/hostname", 0));
	CHECKED(sapwood_stat(fs, "back/hostname", &stat));
	CHECK(stat.size == 1 << 20);
	EXPECT(sapwood_copy(NULL, copy, NULL, copy, 0), EINVAL);
	EXPECT(sapwood_copy(fs, "missing", NULL, copy, 0), ENOENT);
	CHECKED(sapwood_copy(fs, "etc", fs, "back", SAPWOOD_COPY_ARCHIVE));
	CHECK(differing("etc", "back/etc", &last) == 0);
	CHECKED(sapwood_unlink(fs, "back/etc/link"));
	/* Also the time of the directory. */
	CHECK(differing("etc", "back/etc", &last) == 2 && last.kind == SAPWOOD_REMOVED);
	CHECKED(sapwood_untar(fs, archive, "back/etc"));
	CHECK(differing("etc", "back/etc", &last) == 0);

	CHECKED(sapwood_builder_new(type, &builder));
	EXPECT(sapwood_builder_set(builder, "no-such-option", NULL), EINVAL);
	CHECKED(sapwood_builder_set(builder, "free", "8M"));
	CHECKED(sapwood_builder_set(builder, "label", "built"));
	CHECKED(sapwood_builder_set(builder, "all-root", NULL));
	CHECKED(sapwood_builder_at(builder, "srv/etc"));
	EXPECT(sapwood_builder_add(builder, "zip", archive), EINVAL);
	CHECKED(sapwood_builder_add(builder, "tar", archive));
	CHECKED(sapwood_builder_write(builder, built, 0, 0));
	EXPECT(sapwood_builder_write(builder, built, 0, SAPWOOD_REPLACE), EINVAL);
	sapwood_builder_free(builder);
	CHECKED(sapwood_resize(built, "+64M", &size));
	CHECK(size > 64 << 20);
	CHECKED(sapwood_open(built, "ro", &second));
	CHECKED(sapwood_stat(second, "srv/etc/hostname", &stat));
	CHECK(stat.uid == 0 && stat.size == 1 << 20);
	CHECKED(sapwood_close(second));
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: image btrfs|ext4 FILE\n");
		return 2;
	}
	const char *type = argv[1], *image = argv[2];
	const char *options[] = { "label=from C", NULL };
	const char *wrong[] = { "no-such-option", NULL };
	const uint64_t size = 128 << 20;
	sapwood_statfs_t space;
	sapwood_report *report;
	sapwood_fs *second;

	EXPECT(sapwood_open(image, NULL, &fs), ENOENT);
	EXPECT(sapwood_mkfs(image, type, size, wrong, NULL, 0), EINVAL);
	CHECKED(sapwood_mkfs(image, type, size, options, NULL, 0));
	EXPECT(sapwood_mkfs(image, type, size, options, NULL, 0), EEXIST);
	EXPECT(sapwood_open(image, "no_such_option", &fs), EINVAL);
	EXPECT(sapwood_open("/dev/null", NULL, &fs), EINVAL);

	CHECKED(sapwood_open(image, "commit=5", &fs));
	EXPECT(sapwood_open(image, NULL, &second), EBUSY);
	CHECK(strcmp(sapwood_type(fs), type) == 0);
	CHECKED(sapwood_set_creator(fs, 1, 2));
	CHECKED(sapwood_statfs(fs, &space));
	CHECK(space.blocks * space.block_size > size / 2 && space.name_max == 255);
	use_files();
	use_names();
	list();
	use_threads();
	transfer(type, image);
	if (strcmp(type, "btrfs") == 0) {
		CHECKED(sapwood_snapshot(fs, "/", "snapshot", true));
		EXPECT(sapwood_unlink(fs, "snapshot/log"), EROFS);
	} else {
		EXPECT(sapwood_snapshot(fs, "/", "snapshot", true), EOPNOTSUPP);
	}
	CHECKED(sapwood_remove_all(fs, "etc/conf.d"));
	CHECKED(sapwood_sync(fs));
	CHECKED(sapwood_close(fs));

	CHECKED(sapwood_check(image, SAPWOOD_CHECK_DATA, &report));
	for (size_t each = 0; each < sapwood_report_count(report); each++) {
		sapwood_finding finding;
		CHECKED(sapwood_report_get(report, each, &finding));
		printf("%s: %s\n", finding.code, finding.text);
	}
	CHECK(sapwood_report_is_clean(report));
	sapwood_report_free(report);
	printf("sapwood %s: %s (%s) is clean\n", sapwood_version(), image, type);
	return 0;
}
