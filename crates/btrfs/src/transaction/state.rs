//! States of a transaction, and which handles each admits.

/// State of a transaction. See the diagram of the module above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum State {
    /// Takes handles.
    Running,
    /// Claimed for commit: takes only what the commit waits for.
    CommitStart,
    /// The committer is alone in it.
    CommitDoing,
    /// Nothing of it changes any more; the next transaction runs.
    Unblocked,
    /// Durable.
    SuperWritten,
    /// Its pinned space is free again, or it failed.
    Completed,
}

/// What a handle is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandlePurpose {
    /// An operation.
    Start,
    /// Work that a commit waits for: completion of ordered extents.
    Join,
    /// The commit itself.
    Commit,
}

impl State {
    const ALL: [Self; 6] = [
        Self::Running,
        Self::CommitStart,
        Self::CommitDoing,
        Self::Unblocked,
        Self::SuperWritten,
        Self::Completed,
    ];

    /// Which handles each state admits.
    const ENTERS: [(Self, &[HandlePurpose]); 6] = [
        (
            Self::Running,
            &[
                HandlePurpose::Start,
                HandlePurpose::Join,
                HandlePurpose::Commit,
            ],
        ),
        (
            Self::CommitStart,
            &[HandlePurpose::Join, HandlePurpose::Commit],
        ),
        (Self::CommitDoing, &[HandlePurpose::Commit]),
        (Self::Unblocked, &[]),
        (Self::SuperWritten, &[]),
        (Self::Completed, &[]),
    ];

    /// Whether a handle may be taken.
    pub(crate) fn admits(self, entry: HandlePurpose) -> bool {
        let row = Self::ENTERS.iter().find(|(state, _)| *state == self);
        row.is_some_and(|(_, entries)| entries.contains(&entry))
    }

    /// Whether a transaction may go from here to `next`: one step on, or, when it fails, from
    /// anywhere to the end.
    pub(crate) fn may_become(self, next: Self) -> bool {
        next as u8 == self as u8 + 1 || (next == Self::Completed && self != Self::Completed)
    }

    pub(super) fn from_u8(raw: u8) -> Self {
        Self::ALL
            .into_iter()
            .find(|state| *state as u8 == raw)
            .unwrap_or(Self::Completed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_complete_and_only_narrows() {
        let mut before = 3;
        for (row, state) in State::ENTERS.iter().zip(State::ALL) {
            assert_eq!(row.0, state);
            assert_eq!(State::from_u8(state as u8), state);
            assert!(row.1.len() <= before);
            before = row.1.len();
        }
    }

    #[test]
    fn steps_go_on_or_to_the_end() {
        for from in State::ALL {
            for to in State::ALL {
                let on = to as u8 == from as u8 + 1;
                let end = to == State::Completed && from != State::Completed;
                assert_eq!(from.may_become(to), on || end, "{from:?} to {to:?}");
            }
        }
    }
}
