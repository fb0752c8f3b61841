//! The cases of `log`: each mechanism of the btrfs log on and off.

use std::path::PathBuf;

use sapwood::Kind;

use crate::contestant::{Contestant, Face};
use crate::peer::Peer;
use crate::policy::Policy;
use crate::runner::Case;
use crate::setup::Setup;
use crate::workload::Workload;

/// The parameters of the measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Workloads.
    pub workloads: Vec<Workload>,
    /// Policies besides `on`; `None`: those that the workload is about.
    pub policies: Option<Vec<Policy>>,
    /// How Sapwood is used.
    pub faces: Vec<Face>,
    /// Directories for images.
    pub media: Vec<PathBuf>,
    /// The kernel's btrfs too.
    pub kernel: bool,
    /// Run `on` a second time, to show the noise.
    pub control: bool,
    /// Seconds from the first change of a transaction to its commit.
    pub commit: u64,
    /// Number of request threads of a mount; 0: the mount's default.
    pub fuse_threads: usize,
}

impl Plan {
    /// All rows: face, medium and workload.
    #[must_use]
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for face in &self.faces {
            for medium in &self.media {
                cases.extend(self.workloads.iter().map(|workload| Case {
                    workload: *workload,
                    face: match face {
                        Face::Fuse => "FUSE",
                        Face::Library => "library",
                    },
                    family: None,
                    medium: medium.clone(),
                    contestants: self.contestants(*face, workload),
                }));
            }
        }
        cases
    }

    /// The contestants of a row; the others are compared with the first.
    fn contestants(&self, face: Face, workload: &Workload) -> Vec<(String, Contestant)> {
        let mut policies = self.policies.clone().unwrap_or(workload.policies());
        policies.retain(|policy| *policy != Policy::On);
        policies.insert(0, Policy::On);
        let ours = |log| {
            let setup = Setup {
                log,
                commit: Some(self.commit),
                fuse_threads: self.fuse_threads,
                ..Setup::new(Kind::Btrfs)
            };
            Contestant::Sapwood {
                face,
                setup,
                control: false,
            }
        };
        let named = |policy: &Policy| (policy.to_string(), ours(*policy));
        let mut all: Vec<_> = policies.iter().map(named).collect();
        if self.control {
            all.push(("on (control)".to_owned(), ours(Policy::On).again()));
        }
        // The kernel has no file system in process.
        if self.kernel && face == Face::Fuse {
            all.push(("kernel -o ssd".to_owned(), Contestant::Peer(Peer::Btrfs)));
        }
        all
    }
}
