//! The journal of ext4 (jbd2): handles, commit, checkpoint, revokes, recovery.
