//! Errors of qcow2 files.

/// Errors of qcow2 files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Qcow2Error {
    /// The header ends early.
    #[error("a qcow2 file that ends in its header")]
    Short,
    /// It does not begin as one.
    #[error("no qcow2 file")]
    NoQcow2,
    /// A version that is not known.
    #[error("qcow2 of version {0}; versions 2 and 3 are known")]
    Version(u32),
    /// A field of the header is out of range.
    #[error("qcow2 header: {field} is {value}")]
    Field {
        /// The field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// It uses something that is not supported.
    #[error("qcow2 with {0} is not supported")]
    Feature(String),
    /// A backing file that the caller did not allow.
    #[error(
        "needs the backing file {name:?}, which is opened only on demand: with --backing-files, or \
         the mount option backing_files"
    )]
    Backing {
        /// Name of the feature in the header.
        name: String,
    },
    /// Too many backing files.
    #[error("more than {most} backing files, or a loop of them")]
    Chain {
        /// The most that are opened.
        most: usize,
    },
    /// Marked as corrupt. It can still be read.
    #[error("the qcow2 file is marked as corrupt: repair it with qemu-img check -r all")]
    Corrupt,
    /// A table or a cluster is not in the file, or not where one can be.
    #[error("qcow2: {what} at {offset} is not in the file")]
    Place {
        /// The unsupported feature.
        what: &'static str,
        /// Offset in the file.
        offset: u64,
    },
    /// A compressed cluster does not unpack to its size.
    #[error("qcow2: the compressed cluster at {offset} is damaged")]
    Compressed {
        /// Offset in the file.
        offset: u64,
    },
    /// The count of a cluster in use is zero, or cannot become larger.
    #[error("qcow2: the reference count of cluster {cluster} is {count}, which cannot be")]
    Count {
        /// Number of the cluster.
        cluster: u64,
        /// Recorded count.
        count: u64,
    },
    /// The file cannot become larger.
    #[error("qcow2: the file is as large as it can be")]
    Full,
    /// An earlier flush failed, so the content of the file is unknown.
    #[error("qcow2: a flush failed before")]
    FlushFailed,
}
