//! A file that is made with its content.

use sapwood_vfs::{
    Content, Entry, Error, NewInode, Result, SetAttr, SetTime, Timestamp, WriteMode,
};

use super::{Op, Outcome, Session};

impl Session<'_> {
    /// Makes a file at once where the file system can, else in three steps. Its times are always
    /// the same.
    pub(super) fn filled(&mut self, op: &Op) -> Result<Outcome> {
        let Op::Filled {
            at,
            len,
            fill,
            perm,
            who,
        } = op
        else {
            return Err(Error::NotSupported);
        };
        let (fs, who, data) = (self.fs, who.credentials(), fill.bytes(0, *len));
        let [atime, mtime] = [1_000, 2_000].map(|sec| Timestamp { sec, nsec: 7 });
        let content = Content {
            data: &data,
            atime,
            mtime,
        };
        let made = self.within(at, |dir, name| {
            if let Some(made) = fs.create_filled(&who, dir, name, *perm, &content)? {
                return Ok(made);
            }
            let made = fs.create(&who, dir, name, NewInode::Regular, *perm)?;
            fs.write(made.ino(), 0, &data, WriteMode::default())?;
            let times = SetAttr {
                atime: Some(SetTime::To(atime)),
                mtime: Some(SetTime::To(mtime)),
                ..SetAttr::default()
            };
            let attr = fs.setattr(made.ino(), &times)?;
            Ok(Entry { attr })
        })?;
        Ok(self.made(made))
    }
}
