//! States of a transaction, and the actions that each of them admits.

/// State of a transaction. See the diagram in [`transaction`](super).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum State {
    /// Handles may start.
    Running,
    /// Claimed for commit: open handles end, none starts.
    Locked,
    /// Only the committer changes the transaction: last changes, seals, snapshot.
    Snapshotting,
    /// Its contents are fixed; the next transaction runs.
    Unblocked,
    /// Durable.
    Committed,
    /// The blocks that it freed may be used again, or it failed.
    Completed,
}

/// An action in a transaction.
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

    /// The actions that each state admits. Debug builds assert it.
    const ADMITS: [(Self, &[Action]); 6] = [
        (Self::Running, &[Action::Start, Action::Change]),
        (Self::Locked, &[Action::Change]),
        (Self::Snapshotting, &[Action::Close]),
        (Self::Unblocked, &[]),
        (Self::Committed, &[]),
        (Self::Completed, &[]),
    ];

    /// Whether the state allows the action.
    pub(crate) fn admits(self, action: Action) -> bool {
        let row = Self::ADMITS.iter().find(|(state, _)| *state == self);
        row.is_some_and(|(_, actions)| actions.contains(&action))
    }

    /// Whether a transaction may change from this state to `next`: to the following one, or, when
    /// it fails, from any state to the last.
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
    fn every_state_has_a_row_and_one_state_admits_starts() {
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
    fn a_state_changes_to_the_next_or_to_the_last() {
        for from in State::ALL {
            for to in State::ALL {
                let on = to as u8 == from as u8 + 1;
                let end = to == State::Completed && from != State::Completed;
                assert_eq!(from.may_become(to), on || end, "{from:?} to {to:?}");
            }
        }
    }
}
