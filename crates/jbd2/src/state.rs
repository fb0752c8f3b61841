//! States of a transaction and who may do what in which.

/// Where a transaction stands. See the diagram in [`transaction`](super).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum State {
    /// Takes handles.
    Running,
    /// Claimed for commit: its handles end, none starts.
    Locked,
    /// The committer is alone in it: last changes, seals, snapshot.
    Snapshotting,
    /// Nothing changes any more; the next one runs.
    Unblocked,
    /// Durable.
    Committed,
    /// What it freed is free, or it failed.
    Completed,
}

/// What may be done in a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// A handle starts.
    Start,
    /// An open handle changes a buffer.
    Change,
    /// The committer changes a buffer.
    Close,
}

impl State {
    pub(crate) const ALL: [Self; 6] = [
        Self::Running,
        Self::Locked,
        Self::Snapshotting,
        Self::Unblocked,
        Self::Committed,
        Self::Completed,
    ];

    /// What may be done: the table that the code asserts.
    const ADMITS: [(Self, &[Action]); 6] = [
        (Self::Running, &[Action::Start, Action::Change]),
        (Self::Locked, &[Action::Change]),
        (Self::Snapshotting, &[Action::Close]),
        (Self::Unblocked, &[]),
        (Self::Committed, &[]),
        (Self::Completed, &[]),
    ];

    /// Whether this may be done.
    pub(crate) fn admits(self, action: Action) -> bool {
        let row = Self::ADMITS.iter().find(|(state, _)| *state == self);
        row.is_some_and(|(_, actions)| actions.contains(&action))
    }

    /// Whether a transaction may go from here to `next`: one step on, or, when it fails, from
    /// anywhere to the end.
    pub(crate) fn may_become(self, next: Self) -> bool {
        next as u8 == self as u8 + 1 || (next == Self::Completed && self != Self::Completed)
    }

    pub(crate) fn from_u8(raw: u8) -> Self {
        let known = Self::ALL.into_iter().find(|state| *state as u8 == raw);
        known.unwrap_or(Self::Completed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_complete() {
        for (row, state) in State::ADMITS.iter().zip(State::ALL) {
            assert_eq!(row.0, state);
            assert_eq!(State::from_u8(state as u8), state);
        }
        let may_start = |s: &State| s.admits(Action::Start);
        assert_eq!(State::ALL.iter().filter(|s| may_start(s)).count(), 1);
        // A handle and the committer never change something in one state.
        for state in State::ALL {
            assert!(!(state.admits(Action::Change) && state.admits(Action::Close)));
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
