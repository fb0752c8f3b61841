//! Decodes requests.

use super::abi::{
    AccessIn, BatchForgetIn, CopyFileRangeIn, CreateIn, FallocateIn, ForgetIn, ForgetOne, FsyncIn,
    GetXattrIn, InitIn, IoctlIn, LinkIn, LseekIn, MkdirIn, MknodIn, ReadIn, Rename2In, RenameIn,
    SetAttrIn, SetXattrCompatIn, SetXattrIn, StatxIn, WriteIn,
};
use super::{Body, Malformed, Opcode};

/// The requested operation with its arguments. Names have no NUL at their end.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the protocol's names")]
pub(crate) enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget(Forgets<'a>),
    GetAttr,
    SetAttr(SetAttrIn),
    Statx,
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        args: MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        args: MkdirIn,
        name: &'a [u8],
    },
    TmpFile {
        args: CreateIn,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        args: Rename2In,
        from: &'a [u8],
        to: &'a [u8],
    },
    Link {
        source: u64,
        name: &'a [u8],
    },
    Read(ReadIn),
    Write {
        args: WriteIn,
        data: &'a [u8],
    },
    /// Rights with the bits of `access`.
    Access {
        mask: u32,
    },
    StatFs,
    Fsync {
        flags: u32,
    },
    SyncFs,
    SetXattr {
        args: SetXattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    GetXattr {
        size: u32,
        name: &'a [u8],
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Init(InitIn),
    ReadDir(ReadIn),
    ReadDirPlus(ReadIn),
    Ioctl {
        args: IoctlIn,
        input: &'a [u8],
    },
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    /// `wide`: the answer has 64 bits.
    CopyFileRange {
        args: CopyFileRangeIn,
        wide: bool,
    },
    /// Closes a file or directory.
    Release,
    /// No client wants the answer to a request in progress any more.
    Interrupt,
    Destroy,
    /// Known, but not served: with `ENOSYS` the kernel does not ask again.
    NotServed,
}

impl<'a> Operation<'a> {
    /// Decodes the arguments of `opcode`. `long_setxattr`: `FUSE_SETXATTR_EXT` was agreed on.
    ///
    /// # Errors
    /// The malformed field.
    pub(crate) fn decode(
        opcode: Opcode,
        mut body: Body<'a>,
        long_setxattr: bool,
    ) -> Result<Self, Malformed> {
        let body = &mut body;
        Ok(match opcode {
            Opcode::Lookup => Self::Lookup { name: body.name()? },
            Opcode::Unlink => Self::Unlink { name: body.name()? },
            Opcode::Rmdir => Self::Rmdir { name: body.name()? },
            Opcode::RemoveXattr => Self::RemoveXattr { name: body.name()? },
            Opcode::Symlink => Self::Symlink {
                name: body.name()?,
                target: body.name()?,
            },
            Opcode::Mknod => Self::Mknod {
                args: body.header("mknod")?,
                name: body.name()?,
            },
            Opcode::Mkdir => Self::Mkdir {
                args: body.header("mkdir")?,
                name: body.name()?,
            },
            Opcode::Link => Self::Link {
                source: body.header::<LinkIn>("link")?.oldnodeid,
                name: body.name()?,
            },
            Opcode::Rename | Opcode::Rename2 => rename(opcode, body)?,
            // The name is `/`, which is only for logs.
            Opcode::TmpFile => Self::TmpFile {
                args: body.header("tmpfile")?,
            },
            Opcode::Forget | Opcode::BatchForget => forget(opcode, body)?,
            Opcode::Read => Self::Read(body.header("read")?),
            Opcode::ReadDir => Self::ReadDir(body.header("readdir")?),
            Opcode::ReadDirPlus => Self::ReadDirPlus(body.header("readdirplus")?),
            Opcode::Write => {
                let args: WriteIn = body.header("write")?;
                let data = body.data("data", args.size)?;
                Self::Write { args, data }
            }
            Opcode::SetXattr | Opcode::GetXattr | Opcode::ListXattr => {
                xattr(opcode, body, long_setxattr)?
            }
            Opcode::Ioctl => {
                let args: IoctlIn = body.header("ioctl")?;
                let input = body.data("ioctl input", args.in_size)?;
                Self::Ioctl { args, input }
            }
            Opcode::GetAttr => Self::GetAttr,
            Opcode::Access => Self::Access {
                mask: body.header::<AccessIn>("access")?.mask,
            },
            Opcode::SetAttr => Self::SetAttr(body.header("setattr")?),
            Opcode::Statx => {
                body.header::<StatxIn>("statx")?;
                Self::Statx
            }
            Opcode::Fsync | Opcode::FsyncDir => Self::Fsync {
                flags: body.header::<FsyncIn>("fsync")?.fsync_flags,
            },
            Opcode::Fallocate => Self::Fallocate(body.header("fallocate")?),
            Opcode::Lseek => Self::Lseek(body.header("lseek")?),
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => Self::CopyFileRange {
                args: body.header("copy_file_range")?,
                wide: opcode == Opcode::CopyFileRange64,
            },
            Opcode::Init => Self::Init(body.header("init")?),
            Opcode::ReadLink => Self::ReadLink,
            Opcode::StatFs => Self::StatFs,
            Opcode::SyncFs => Self::SyncFs,
            Opcode::Release | Opcode::ReleaseDir => Self::Release,
            Opcode::Interrupt => Self::Interrupt,
            Opcode::Destroy => Self::Destroy,
            Opcode::Open | Opcode::OpenDir | Opcode::Create | Opcode::Flush => Self::NotServed,
        })
    }
}

fn rename<'a>(opcode: Opcode, body: &mut Body<'a>) -> Result<Operation<'a>, Malformed> {
    let args = if opcode == Opcode::Rename2 {
        body.header("rename2")?
    } else {
        let RenameIn { newdir } = body.header("rename")?;
        Rename2In {
            newdir,
            ..Rename2In::default()
        }
    };
    Ok(Operation::Rename {
        args,
        from: body.name()?,
        to: body.name()?,
    })
}

fn forget<'a>(opcode: Opcode, body: &mut Body<'a>) -> Result<Operation<'a>, Malformed> {
    if opcode == Opcode::Forget {
        let ForgetIn { nlookup } = body.header("forget")?;
        return Ok(Operation::Forget { count: nlookup });
    }
    let BatchForgetIn { count, .. } = body.header("batch forget")?;
    let size = u32::try_from(size_of::<ForgetOne>()).unwrap_or(u32::MAX);
    let bytes = body.data("forgotten nodes", count.saturating_mul(size))?;
    Ok(Operation::BatchForget(Forgets(Body::joined(bytes))))
}

fn xattr<'a>(
    opcode: Opcode,
    body: &mut Body<'a>,
    long_setxattr: bool,
) -> Result<Operation<'a>, Malformed> {
    if opcode != Opcode::SetXattr {
        let GetXattrIn { size, .. } = body.header("getxattr")?;
        return Ok(if opcode == Opcode::ListXattr {
            Operation::ListXattr { size }
        } else {
            let name = body.name()?;
            Operation::GetXattr { size, name }
        });
    }
    let args = if long_setxattr {
        body.header("setxattr")?
    } else {
        let SetXattrCompatIn { size, flags } = body.header("setxattr")?;
        SetXattrIn {
            size,
            flags,
            ..SetXattrIn::default()
        }
    };
    let name = body.name()?;
    let value = body.data("attribute value", args.size)?;
    Ok(Operation::SetXattr { args, name, value })
}

/// Nodes to forget.
#[derive(Debug, Clone)]
pub(crate) struct Forgets<'a>(Body<'a>);

impl Iterator for Forgets<'_> {
    type Item = ForgetOne;

    fn next(&mut self) -> Option<ForgetOne> {
        self.0.next("forgotten node").ok()
    }
}
