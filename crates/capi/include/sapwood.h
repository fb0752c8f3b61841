/* btrfs and ext4 in user space: the library. Made by cbindgen from the crate sapwood-capi.
 *
 * A function returns 0 or a count if it succeeds, and a negative errno if it fails;
 * sapwood_error_message() says why.
 *
 * Paths are bytes that end with a zero byte. They begin at the root of the image, with or without a
 * leading slash. A symbolic link is followed within the image, and never leads out of it. No
 * permission is checked.
 *
 * Threads: each handle says how many threads may use it at a time. A handle must not be used by
 * another thread while, or after, it is closed. After fork(2) only one of the processes may go on
 * to use an image.
 *
 * Link with `pkg-config --cflags --libs libsapwood`.
 */

#ifndef SAPWOOD_H
#define SAPWOOD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/**
 * For `sapwood_diff`: the bytes of files are compared. Otherwise a file of equal size and
 * modification time counts as unchanged.
 */
#define SAPWOOD_DIFF_CONTENT 1

/**
 * Only the old directory has the name.
 */
#define SAPWOOD_REMOVED 0

/**
 * The file has another name in the new directory.
 */
#define SAPWOOD_RENAMED 1

/**
 * Only the new directory has the name.
 */
#define SAPWOOD_ADDED 2

/**
 * The file changed.
 */
#define SAPWOOD_CHANGED 3

/**
 * A part that differs: content, target of a symbolic link, or device number.
 */
#define SAPWOOD_PART_CONTENT 1

/**
 * A part that differs: length.
 */
#define SAPWOOD_PART_SIZE 2

/**
 * A part that differs: modification time.
 */
#define SAPWOOD_PART_MTIME 4

/**
 * A part that differs: permission bits.
 */
#define SAPWOOD_PART_MODE 8

/**
 * A part that differs: owner.
 */
#define SAPWOOD_PART_UID 16

/**
 * A part that differs: group.
 */
#define SAPWOOD_PART_GID 32

/**
 * A part that differs: extended attributes, ACLs among them.
 */
#define SAPWOOD_PART_XATTRS 64

/**
 * For `sapwood_mkfs`, `sapwood_builder_write` and `sapwood_export`: an existing file is replaced.
 */
#define SAPWOOD_REPLACE 1

/**
 * For `sapwood_check`: all data is read too, and compared with its checksums (btrfs).
 */
#define SAPWOOD_CHECK_DATA 1

/**
 * For `sapwood_copy`: directories are copied with everything below them.
 */
#define SAPWOOD_COPY_RECURSIVE 1

/**
 * For `sapwood_copy`: as `SAPWOOD_COPY_RECURSIVE`, and owner, mode, times, extended attributes,
 * hard links and special files are kept, as with `cp -a`.
 */
#define SAPWOOD_COPY_ARCHIVE 2

/**
 * For `sapwood_copy`: a file that exists stays, and its copy is left out without an error.
 */
#define SAPWOOD_COPY_KEEP 4

/**
 * For `sapwood_export`: a layer of an OCI image, with whiteouts for names that `since` has and
 * `fs` has not.
 */
#define SAPWOOD_EXPORT_LAYER 2

/**
 * For `sapwood_export`: what cannot be read becomes zeros, and is counted as damaged.
 */
#define SAPWOOD_EXPORT_KEEP_GOING 4

/**
 * The description of a new image. One thread at a time may use it.
 */
typedef struct sapwood_builder sapwood_builder;

/**
 * The result of a comparison. Any number of threads may use it at a time.
 */
typedef struct sapwood_differences sapwood_differences;

/**
 * The entries of a directory. One thread at a time may use it.
 */
typedef struct sapwood_dir sapwood_dir;

/**
 * An open file.
 *
 * Any number of threads may use it at a time; they share one position.
 */
typedef struct sapwood_file sapwood_file;

/**
 * An open image.
 *
 * Any number of threads may use it at a time. `sapwood_close` must be the last call with it.
 */
typedef struct sapwood_fs sapwood_fs;

/**
 * The result of a check. Any number of threads may use it at a time.
 */
typedef struct sapwood_report sapwood_report;

/**
 * Everything below a directory. One thread at a time may use it.
 */
typedef struct sapwood_walk sapwood_walk;

/**
 * A difference between two directories.
 */
typedef struct sapwood_difference {
  /**
   * The path: in the old directory if it was removed, else in the new one.
   */
  const char *path;
  /**
   * The old path of a renamed file, else `NULL`.
   */
  const char *from;
  /**
   * One of `SAPWOOD_REMOVED`, `SAPWOOD_RENAMED`, `SAPWOOD_ADDED`, `SAPWOOD_CHANGED`.
   */
  uint32_t kind;
  /**
   * For a changed file: bits `SAPWOOD_PART_...`.
   */
  uint32_t parts;
  /**
   * Type of the file, in the bits `S_IFMT` of `st_mode`.
   */
  uint32_t mode;
} sapwood_difference;

/**
 * A name in a directory.
 */
typedef struct sapwood_entry {
  /**
   * The name. It is valid until the next call with its `sapwood_dir`.
   */
  const char *name;
  /**
   * Inode number.
   */
  uint64_t ino;
  /**
   * Type, in the bits `S_IFMT` of `st_mode`.
   */
  uint32_t mode;
} sapwood_entry;

/**
 * Seconds and nanoseconds since 1970 in UTC.
 */
typedef struct sapwood_time {
  /**
   * Seconds; negative before 1970.
   */
  int64_t sec;
  /**
   * Nanoseconds, below 1,000,000,000.
   */
  uint32_t nsec;
} sapwood_time;

/**
 * Metadata of a file. Sizes are bytes.
 */
typedef struct sapwood_stat_t {
  /**
   * Inode number.
   */
  uint64_t ino;
  /**
   * Length.
   */
  uint64_t size;
  /**
   * Allocated space.
   */
  uint64_t allocated;
  /**
   * Device number of a device node; otherwise 0.
   */
  uint64_t rdev;
  /**
   * Type (`S_IFMT`) and permissions, as `st_mode` of stat(2).
   */
  uint32_t mode;
  /**
   * Number of names.
   */
  uint32_t nlink;
  /**
   * Owner.
   */
  uint32_t uid;
  /**
   * Group.
   */
  uint32_t gid;
  /**
   * Last access.
   */
  struct sapwood_time atime;
  /**
   * Last change of the content.
   */
  struct sapwood_time mtime;
  /**
   * Last change of the inode.
   */
  struct sapwood_time ctime;
  /**
   * Creation.
   */
  struct sapwood_time btime;
  /**
   * Zero; for later versions.
   */
  uint64_t reserved[4];
} sapwood_stat_t;

/**
 * Sizes and counts of a file system.
 */
typedef struct sapwood_statfs_t {
  /**
   * Unit of the counts of blocks, in bytes.
   */
  uint32_t block_size;
  /**
   * Longest name in bytes.
   */
  uint32_t name_max;
  /**
   * Size of the file system.
   */
  uint64_t blocks;
  /**
   * Unused blocks.
   */
  uint64_t blocks_free;
  /**
   * Unused blocks that an ordinary user may have.
   */
  uint64_t blocks_available;
  /**
   * Number of inodes; 0 if they are created on demand.
   */
  uint64_t inodes;
  /**
   * Unused inodes.
   */
  uint64_t inodes_free;
} sapwood_statfs_t;

/**
 * Something that a check found.
 */
typedef struct sapwood_finding {
  /**
   * Kind of the finding, as a word that stays the same from version to version.
   */
  const char *code;
  /**
   * Description of the defect, with the block, key or inode.
   */
  const char *text;
  /**
   * Every reader copes with it: nothing is lost or in danger.
   */
  bool warning;
} sapwood_finding;

/**
 * The archive that `sapwood_export` made.
 */
typedef struct sapwood_exported {
  /**
   * Entries, whiteouts among them.
   */
  uint64_t entries;
  /**
   * Sockets, which an archive cannot have.
   */
  uint64_t left_out;
  /**
   * Files and directories that could not be read, or only in part.
   */
  uint64_t damaged;
  /**
   * Bytes of the archive.
   */
  uint64_t size;
  /**
   * SHA-256 of the archive before compression: the `diff_id` of a layer.
   */
  uint8_t diff_id[32];
  /**
   * SHA-256 of the file: the digest of a layer.
   */
  uint8_t digest[32];
} sapwood_exported;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Begins the description of an image of `type`, `"btrfs"` or `"ext4"`. `sapwood_builder_free`
 * releases it.
 */
int sapwood_builder_new(const char *type, struct sapwood_builder **builder);

/**
 * Adds files. Sources are applied in their order: a later file replaces an earlier one of the same
 * name. `kind` is one of
 *
 * - `"dir"`: the contents of a directory, with owners, modes, times, attributes and links;
 * - `"tar"`, `"cpio"`: an archive, plain or compressed with gzip, zstd, xz or bzip2;
 * - `"oci"`: a container image, as an OCI layout or an archive of `docker save`;
 * - `"layer"`, `"overlay"`: a layer of a container image or of overlayfs, applied to the sources
 *   before it.
 *
 * The source is read by `sapwood_builder_write`.
 */
int sapwood_builder_add(struct sapwood_builder *builder, const char *kind, const char *path);

/**
 * Puts the files of later sources below this directory of the image.
 */
int sapwood_builder_at(struct sapwood_builder *builder, const char *directory);

/**
 * Sets an option; `value` is `NULL` for one without a value. Its names are
 *
 * - `"free"`: space that stays available to users, in bytes, with a unit (`"64M"`), or of the
 *   smallest size (`"10%"`);
 * - `"free-inodes"`: inodes that stay unused (ext4);
 * - `"output-format"`: `"raw"`, `"qcow2"` or another one of `sapwood mkfs --output-format`;
 * - `"reproducible"`: the same sources give the same bytes;
 * - `"all-root"`: everything belongs to root;
 * - `"exclude"`: leaves out the matches of a pattern, with everything below them;
 * - the options of `sapwood_mkfs`, such as `"label"`.
 */
int sapwood_builder_set(struct sapwood_builder *builder, const char *name, const char *value);

/**
 * Makes the image, which gets its name when it is complete and durable. With `size` 0 it is as
 * small as its files allow. The description is used up; only `sapwood_builder_free` may follow.
 *
 * Errors: `EEXIST` (without `SAPWOOD_REPLACE` in `flags`), `EINVAL`, `ENOSPC`, and the errors of a
 * source.
 */
int sapwood_builder_write(struct sapwood_builder *builder,
                          const char *image,
                          uint64_t size,
                          uint32_t flags);

/**
 * Releases a description. `NULL` is allowed.
 */
void sapwood_builder_free(struct sapwood_builder *builder);

/**
 * The message of the last call of this thread that failed; an empty string if none did. It is
 * valid until the next call of this thread that fails.
 */
const char *sapwood_error_message(void);

/**
 * The version of the library, as `"0.2.0"`.
 */
const char *sapwood_version(void);

/**
 * Compares two directories, of one image or of two. The differences are sorted by path;
 * `sapwood_differences_free` releases them.
 */
int sapwood_diff(const struct sapwood_fs *old_fs,
                 const char *old_path,
                 const struct sapwood_fs *new_fs,
                 const char *new_path,
                 uint32_t flags,
                 struct sapwood_differences **differences);

/**
 * The number of differences. 0 if `differences` is `NULL`.
 */
size_t sapwood_differences_count(const struct sapwood_differences *differences);

/**
 * A difference by its number from 0. Its strings are valid as long as `differences`.
 */
int sapwood_differences_get(const struct sapwood_differences *differences,
                            size_t number,
                            struct sapwood_difference *difference);

/**
 * Releases differences. `NULL` is allowed.
 */
void sapwood_differences_free(struct sapwood_differences *differences);

/**
 * Begins to list a directory.
 */
int sapwood_dir_open(const struct sapwood_fs *fs, const char *path, struct sapwood_dir **dir);

/**
 * The next entry, without `.` and `..`, in the image's order. Returns 1, or 0 at the end.
 */
int sapwood_dir_next(struct sapwood_dir *dir, struct sapwood_entry *entry);

/**
 * Ends a listing. `NULL` is allowed.
 */
int sapwood_dir_close(struct sapwood_dir *dir);

/**
 * Begins a walk of everything below a directory: depth first, each directory before its content.
 * Symbolic links are not followed.
 */
int sapwood_walk_open(const struct sapwood_fs *fs, const char *path, struct sapwood_walk **walk);

/**
 * The next file: its path below the directory where the walk began, valid until the next call with
 * this walk, and its metadata (`stat` may be `NULL`). Returns 1, or 0 at the end.
 */
int sapwood_walk_next(struct sapwood_walk *walk, const char **path, struct sapwood_stat_t *stat);

/**
 * Ends a walk. `NULL` is allowed.
 */
int sapwood_walk_close(struct sapwood_walk *walk);

/**
 * Opens a file of the image. `flags` are flags of open(2): `O_RDONLY`, `O_WRONLY` or `O_RDWR`,
 * with `O_CREAT`, `O_EXCL`, `O_TRUNC` or `O_APPEND`. A new file gets the permission bits `mode`.
 */
int sapwood_file_open(const struct sapwood_fs *fs,
                      const char *path,
                      int flags,
                      uint32_t mode,
                      struct sapwood_file **file);

/**
 * Ends the use of a file. Written data is durable after `sapwood_file_sync`, `sapwood_sync` or
 * `sapwood_close`. `NULL` is allowed.
 */
int sapwood_file_close(struct sapwood_file *file);

/**
 * Reads at the file's position, and moves it. Returns the number of bytes, 0 at the end.
 */
ssize_t sapwood_file_read(const struct sapwood_file *file, void *buffer, size_t size);

/**
 * Reads at a byte offset. Returns the number of bytes, fewer than `size` only at the end.
 */
ssize_t sapwood_file_pread(const struct sapwood_file *file,
                           void *buffer,
                           size_t size,
                           uint64_t offset);

/**
 * Writes all bytes at the file's position (with `O_APPEND`, at the end), and moves it. Returns
 * `size`.
 */
ssize_t sapwood_file_write(const struct sapwood_file *file, const void *data, size_t size);

/**
 * Writes all bytes at a byte offset (with `O_APPEND`, at the end). Returns `size`.
 */
ssize_t sapwood_file_pwrite(const struct sapwood_file *file,
                            const void *data,
                            size_t size,
                            uint64_t offset);

/**
 * Moves the position as lseek(2); `whence` is `SEEK_SET`, `SEEK_CUR` or `SEEK_END`. Returns the
 * new position.
 */
int64_t sapwood_file_seek(const struct sapwood_file *file, int64_t offset, int whence);

/**
 * Truncates the file, or extends it with a hole.
 */
int sapwood_file_truncate(const struct sapwood_file *file, uint64_t size);

/**
 * Metadata of the file.
 */
int sapwood_file_stat(const struct sapwood_file *file, struct sapwood_stat_t *result);

/**
 * Makes content and metadata of the file durable, as fsync(2).
 */
int sapwood_file_sync(const struct sapwood_file *file);

/**
 * Makes the content durable, and the metadata that is needed to read it, as fdatasync(2).
 */
int sapwood_file_datasync(const struct sapwood_file *file);

/**
 * Opens an image file or block device. No other process can open it meanwhile, unless both only
 * read. `IMAGE#N` is partition N of an image.
 *
 * `options` is a list as `mount -o` takes it, such as `"ro"` or `"compress=zstd,subvol=home"`;
 * it may be `NULL`.
 *
 * Errors: `ENOENT`, `EACCES`, `EBUSY` (in use), `EMEDIUMTYPE` (not btrfs or ext4), `EUCLEAN`
 * (damaged), `EOPNOTSUPP` (with an unknown feature), `EINVAL` (an option).
 */
int sapwood_open(const char *image, const char *options, struct sapwood_fs **fs);

/**
 * Makes everything durable, and ends the use of the image. The handle is gone also if that fails.
 * Open files, listings and walks must be closed too; until then every call with them fails.
 * `NULL` is allowed.
 *
 * Errors: changes that did not become durable.
 */
int sapwood_close(struct sapwood_fs *fs);

/**
 * Makes everything durable.
 */
int sapwood_sync(const struct sapwood_fs *fs);

/**
 * The format of the image: `"btrfs"` or `"ext4"`; `NULL` if `fs` is.
 */
const char *sapwood_type(const struct sapwood_fs *fs);

/**
 * Sizes and counts.
 */
int sapwood_statfs(const struct sapwood_fs *fs, struct sapwood_statfs_t *result);

/**
 * Sets the owner and group of new files. The default is the owner of the process.
 */
int sapwood_set_creator(const struct sapwood_fs *fs, uint32_t uid, uint32_t gid);

/**
 * Permission bits that new files and directories do not get; none at first.
 */
int sapwood_set_umask(const struct sapwood_fs *fs, uint32_t umask);

/**
 * Makes a file system in a new image file. The file gets its name when it is complete and durable.
 *
 * `type` is `"btrfs"` or `"ext4"`. `options` ends with `NULL`, and contains options of
 * `sapwood mkfs` as `"name"` or `"name=value"`, such as `"label=root"`; it may be `NULL`. If
 * `source` is not `NULL`, the image gets the files of that directory; then `size` may be 0 for an
 * image that is as small as its files allow.
 *
 * Errors: `EEXIST` (without `SAPWOOD_REPLACE` in `flags`), `EINVAL` (an option), `ENOSPC`.
 */
int sapwood_mkfs(const char *image,
                 const char *type,
                 uint64_t size,
                 const char *const *options,
                 const char *source,
                 uint32_t flags);

/**
 * Changes the size of an image that is not open, and of its file. `size` is `"min"`, a number of
 * bytes or one with a unit (`"2G"`), or a change (`"+1G"`, `"-512M"`). `result` gets the size of the
 * file system in bytes; it may be `NULL`.
 *
 * A crash leaves a complete file system of the old or the new size. Errors: `EINVAL` (the files do
 * not fit), and the errors of `sapwood_open`.
 */
int sapwood_resize(const char *image,
                   const char *size,
                   uint64_t *result);

/**
 * Checks an image that is not open, and changes nothing. The report has the defects;
 * `sapwood_report_free` releases it.
 *
 * `flags` is 0 or `SAPWOOD_CHECK_DATA`. Errors: as `sapwood_open`.
 */
int sapwood_check(const char *image, uint32_t flags, struct sapwood_report **report);

/**
 * Whether nothing is wrong. There may be warnings. False if `report` is `NULL`.
 */
bool sapwood_report_is_clean(const struct sapwood_report *report);

/**
 * The number of findings that the report contains.
 */
size_t sapwood_report_count(const struct sapwood_report *report);

/**
 * The number of further findings, which the report does not contain.
 */
uint64_t sapwood_report_suppressed(const struct sapwood_report *report);

/**
 * A finding by its number from 0. Its strings are valid as long as the report.
 */
int sapwood_report_get(const struct sapwood_report *report,
                       size_t number,
                       struct sapwood_finding *finding);

/**
 * Releases a report. `NULL` is allowed.
 */
void sapwood_report_free(struct sapwood_report *report);

/**
 * Metadata of a file. Follows symbolic links.
 */
int sapwood_stat(const struct sapwood_fs *fs, const char *path, struct sapwood_stat_t *result);

/**
 * Metadata of a file; of a symbolic link itself.
 */
int sapwood_lstat(const struct sapwood_fs *fs, const char *path, struct sapwood_stat_t *result);

/**
 * Sets permission, set-id and sticky bits.
 */
int sapwood_chmod(const struct sapwood_fs *fs, const char *path, uint32_t mode);

/**
 * Sets owner and group, of a symbolic link itself. `UINT32_MAX` leaves one as it is.
 */
int sapwood_chown(const struct sapwood_fs *fs, const char *path, uint32_t uid, uint32_t gid);

/**
 * Sets the times of the last access and of the last change. `NULL` leaves one as it is.
 */
int sapwood_set_times(const struct sapwood_fs *fs,
                      const char *path,
                      const struct sapwood_time *atime,
                      const struct sapwood_time *mtime);

/**
 * Creates a directory.
 */
int sapwood_mkdir(const struct sapwood_fs *fs, const char *path, uint32_t mode);

/**
 * Creates a directory and all missing ones above it. One that exists is no error.
 */
int sapwood_mkdir_all(const struct sapwood_fs *fs, const char *path, uint32_t mode);

/**
 * Removes a name of anything but a directory.
 */
int sapwood_unlink(const struct sapwood_fs *fs, const char *path);

/**
 * Removes an empty directory.
 */
int sapwood_rmdir(const struct sapwood_fs *fs, const char *path);

/**
 * Removes a directory and everything below it. Symbolic links below are removed, not followed.
 */
int sapwood_remove_all(const struct sapwood_fs *fs, const char *path);

/**
 * Renames, as rename(2): replaces a file or an empty directory at `to`.
 */
int sapwood_rename(const struct sapwood_fs *fs, const char *from, const char *to);

/**
 * Creates a symbolic link at `path` that contains `target`.
 */
int sapwood_symlink(const struct sapwood_fs *fs, const char *target, const char *path);

/**
 * Gives a file one more name, `path`.
 */
int sapwood_link(const struct sapwood_fs *fs, const char *original, const char *path);

/**
 * The target of a symbolic link. Returns its length; no zero byte is added. With `size` 0, only
 * the length is returned. `ERANGE`: the buffer is too short.
 */
ssize_t sapwood_readlink(const struct sapwood_fs *fs, const char *path, char *buffer, size_t size);

/**
 * Creates a subvolume (btrfs). A path is in the subvolume that is open: the default one, or the
 * one that the option `subvol` names; `subvolid=0` reaches all.
 */
int sapwood_subvolume_create(const struct sapwood_fs *fs, const char *path);

/**
 * Deletes a subvolume or snapshot with all that is in it (btrfs).
 */
int sapwood_subvolume_delete(const struct sapwood_fs *fs, const char *path);

/**
 * Creates a snapshot of the subvolume with root directory `from` at `to` (btrfs); `/` is the
 * subvolume that is open.
 */
int sapwood_snapshot(const struct sapwood_fs *fs, const char *from, const char *to, bool read_only);

/**
 * Copies as cp(1): from this machine into an image, out of one, within one or between two. `NULL`
 * for an image is this machine. If `to` is a directory, the copy gets the name of `from` in it.
 *
 * Everything is tried; the first name that cannot be copied is the error. A copy in an image
 * belongs to the effective user of the process unless it is an archive copy.
 */
int sapwood_copy(const struct sapwood_fs *from_fs,
                 const char *from,
                 const struct sapwood_fs *to_fs,
                 const char *to,
                 uint32_t flags);

/**
 * Extracts a tar archive into a directory that exists. The archive is plain or compressed with
 * gzip, zstd, xz or bzip2. What was extracted before an error stays.
 */
int sapwood_untar(const struct sapwood_fs *fs, const char *archive, const char *directory);

/**
 * Writes a directory of an image as a tar archive, which gets its name when it is complete and
 * durable. If `since` is not `NULL`, only the changes since the directory `since_path` of that
 * image. It may be the same image. `compression` is `NULL`, `"gzip"` or `"zstd"`. `result` may be
 * `NULL`.
 *
 * Errors: `EEXIST` (without `SAPWOOD_REPLACE` in `flags`), `EIO` (a file cannot be read; without
 * `SAPWOOD_EXPORT_KEEP_GOING` in `flags` no archive is made then).
 */
int sapwood_export(const struct sapwood_fs *fs,
                   const char *path,
                   const char *archive,
                   const char *compression,
                   const struct sapwood_fs *since,
                   const char *since_path,
                   uint32_t flags,
                   struct sapwood_exported *result);

/**
 * The value of an extended attribute by its full name, such as `user.x`. Returns its length. With
 * `size` 0, only the length is returned. `ENODATA`: there is none; `ERANGE`: the buffer is too
 * short.
 */
ssize_t sapwood_getxattr(const struct sapwood_fs *fs,
                         const char *path,
                         const char *name,
                         void *buffer,
                         size_t size);

/**
 * The full names of all extended attributes, each with a zero byte at its end. Returns their
 * length. With `size` 0, only the length is returned. `ERANGE`: the buffer is too short.
 */
ssize_t sapwood_listxattr(const struct sapwood_fs *fs, const char *path, char *buffer, size_t size);

/**
 * Sets an extended attribute.
 */
int sapwood_setxattr(const struct sapwood_fs *fs,
                     const char *path,
                     const char *name,
                     const void *value,
                     size_t size);

/**
 * Removes an extended attribute. `ENODATA`: there is none.
 */
int sapwood_removexattr(const struct sapwood_fs *fs, const char *path, const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SAPWOOD_H */
