//! Quota groups of a btrfs, and changes of them.

use std::fmt;
use std::str::FromStr;

use sapwood_btrfs::quota_groups as engine;
use serde::{Deserialize, Serialize};

/// Id of a quota group. Its text is `LEVEL/ID`; of level 0, whose ids are the ones of subvolumes,
/// also `ID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QuotaGroupId {
    /// Level.
    pub level: u16,
    /// Id within the level, of 48 bits.
    pub id: u64,
}

impl QuotaGroupId {
    fn of(id: engine::GroupId) -> Self {
        Self {
            level: id.level,
            id: id.id,
        }
    }

    fn engine(self) -> engine::GroupId {
        engine::GroupId {
            level: self.level,
            id: self.id,
        }
    }
}

impl fmt::Display for QuotaGroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.engine().fmt(f)
    }
}

/// Text that is no id of a quota group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct BadQuotaGroupId(#[from] engine::BadGroupId);

impl FromStr for QuotaGroupId {
    type Err = BadQuotaGroupId;

    fn from_str(text: &str) -> std::result::Result<Self, BadQuotaGroupId> {
        Ok(Self::of(text.parse()?))
    }
}

/// A quota group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QuotaGroup {
    /// Id.
    pub id: QuotaGroupId,
    /// Bytes of extents that its subvolumes reach.
    pub referenced: u64,
    /// Bytes of extents that only its subvolumes reach.
    pub exclusive: u64,
    /// Limit of `referenced`.
    pub max_referenced: Option<u64>,
    /// Limit of `exclusive`.
    pub max_exclusive: Option<u64>,
    /// Groups that it is directly a member of.
    pub parents: Vec<QuotaGroupId>,
}

/// The quotas of a btrfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Quotas {
    /// The numbers are right. Otherwise they must be counted anew, and limits are not enforced.
    pub consistent: bool,
    /// All groups, by level and id.
    pub groups: Vec<QuotaGroup>,
}

impl Quotas {
    /// The quotas that the engine found.
    pub(crate) fn of(found: engine::Quotas) -> Self {
        let groups = found.groups.into_iter().map(|group| QuotaGroup {
            id: QuotaGroupId::of(group.id),
            referenced: group.referenced,
            exclusive: group.exclusive,
            max_referenced: group.max_referenced,
            max_exclusive: group.max_exclusive,
            parents: group.parents.into_iter().map(QuotaGroupId::of).collect(),
        });
        Self {
            consistent: found.consistent,
            groups: groups.collect(),
        }
    }
}

/// A change of one limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitChange {
    /// The limit stays as it is.
    #[default]
    Keep,
    /// There is no limit.
    Remove,
    /// Most bytes.
    Set(u64),
}

impl LimitChange {
    fn engine(self) -> Option<Option<u64>> {
        match self {
            Self::Keep => None,
            Self::Remove => Some(None),
            Self::Set(bytes) => Some(Some(bytes)),
        }
    }
}

/// A change of quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum QuotaChange {
    /// Turns quotas on, with a group for each subvolume. Counts anew if they are on.
    Enable,
    /// Turns simple quotas on, which count extents from now on, for the subvolume that they were
    /// allocated for. They cost less than groups that follow shared extents. Linux knows them since
    /// 6.7.
    EnableSimple,
    /// Turns quotas off, and deletes all groups with their limits.
    Disable,
    /// Counts all numbers anew.
    Rescan,
    /// Makes a group.
    Create(QuotaGroupId),
    /// Deletes a group that has no members and whose subvolume does not exist.
    Remove(QuotaGroupId),
    /// Makes a group a member of one with a higher level.
    Assign {
        /// The member.
        member: QuotaGroupId,
        /// The group that it comes into.
        group: QuotaGroupId,
    },
    /// Ends a membership.
    Unassign {
        /// The member.
        member: QuotaGroupId,
        /// The group that it leaves.
        group: QuotaGroupId,
    },
    /// Changes the limits of a group.
    Limit {
        /// The group.
        group: QuotaGroupId,
        /// Limit of referenced bytes.
        referenced: LimitChange,
        /// Limit of exclusive bytes.
        exclusive: LimitChange,
    },
}

impl QuotaChange {
    pub(crate) fn engine(self) -> engine::QuotaChange {
        use engine::QuotaChange as To;
        match self {
            Self::Enable => To::Enable,
            Self::EnableSimple => To::EnableSimple,
            Self::Disable => To::Disable,
            Self::Rescan => To::Rescan,
            Self::Create(id) => To::Create(id.engine()),
            Self::Remove(id) => To::Remove(id.engine()),
            Self::Assign { member, group } => To::Assign(member.engine(), group.engine()),
            Self::Unassign { member, group } => To::Unassign(member.engine(), group.engine()),
            Self::Limit {
                group,
                referenced,
                exclusive,
            } => To::Limit(
                group.engine(),
                engine::Limits {
                    referenced: referenced.engine(),
                    exclusive: exclusive.engine(),
                },
            ),
        }
    }
}
