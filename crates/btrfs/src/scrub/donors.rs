//! Repairs sectors without a good copy from other sources: files, older images, streams.
//!
//! # How it works
//! Only the checksums of the lost sectors are kept, and the places in files where these lie. A
//! [`Donor`] then offers all of its sectors once, and none of them is kept. An offered sector takes
//! the place of a lost one whose checksum it has, if
//! - the checksum has 8 bytes or more, or
//! - it is at the same offset of a file or of a device, or
//! - the sector before or after it in the donor has the checksum of the neighbour of the lost one.
//!
//! The last two rules keep chance away from CRC-32C: among a billion sectors every fourth checksum
//! of 4 bytes occurs by chance.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_btrfs_format::Checksum;

use super::ScrubReport;
use super::files::{self, BadRange, State};
use crate::Result;
use crate::mount::Engine;
use crate::transaction::Store;

/// Most lost sectors that one scrub looks for.
const MOST_WANTED: usize = 1 << 20;
/// Bytes of checksums that are conclusive alone.
const CONCLUSIVE: usize = 8;
/// Sectors between two calls of the callback.
const BETWEEN_STEPS: u64 = 4096;

/// A sector of a donor.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'o> {
    /// The bytes of one sector.
    pub bytes: &'o [u8],
    /// Path of the file that it belongs to, if the donor has paths.
    pub path: Option<&'o [u8]>,
    /// Offset in that file, or in the donor.
    pub offset: u64,
}

/// Takes a sector of a donor; the donor ends early where it breaks.
pub type TakeOffer<'t> = dyn FnMut(Offer<'_>) -> ControlFlow<()> + 't;

/// A source of sectors, such as a file or an older image.
pub trait Donor: Send {
    /// Passes all sectors of `sector` bytes, in order.
    ///
    /// # Errors
    /// The donor cannot be read, or is malformed. The sectors until then were passed.
    fn each(&mut self, sector: usize, take: &mut TakeOffer<'_>) -> io::Result<()>;
}

/// The contribution of one donor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Donated {
    /// Sectors that were repaired from it.
    pub sectors: u64,
    /// Why it ended early.
    pub error: Option<String>,
}

/// A lost sector.
struct Wanted {
    logical: u64,
    /// Checksums of the sectors before and after it, if they have one.
    neighbours: [Option<Checksum>; 2],
    /// Offsets in files, with the numbers of their paths.
    places: Vec<(usize, u64)>,
    /// Offsets on devices.
    physical: Vec<u64>,
}

/// The sector of a donor before the one that is offered.
#[derive(Default)]
struct Before {
    sum: Option<Checksum>,
    path: Option<Vec<u8>>,
    /// Offset after it.
    end: u64,
    /// Its bytes, if lost sectors have its checksum.
    bytes: Vec<u8>,
}

/// The lost sectors by their checksums.
struct Search {
    sector: usize,
    wanted: HashMap<Checksum, Vec<Wanted>>,
    /// Paths of the files that have lost sectors.
    paths: Vec<Vec<u8>>,
    before: Before,
}

/// Repairs lost sectors of `bad` from the donors, and records the donor of each.
///
/// # Errors
/// Unreadable trees.
pub(super) fn repair(
    engine: &Arc<Engine>,
    donors: &mut [Box<dyn Donor>],
    bad: &mut [BadRange],
    report: &mut ScrubReport,
    go_on: &mut (dyn FnMut() -> ControlFlow<()> + Send),
) -> Result<()> {
    let store: &Arc<Store> = engine;
    let mut search = Search::new(engine, bad)?;
    for (nth, donor) in donors.iter_mut().enumerate() {
        let (mut donated, mut failed, mut offers) = (Donated::default(), Ok(()), 0_u64);
        search.before = Before::default();
        let offered = donor.each(search.sector, &mut |offer| {
            offers += 1;
            if search.wanted.is_empty() {
                return ControlFlow::Break(());
            }
            if offers.is_multiple_of(BETWEEN_STEPS) && go_on().is_break() {
                report.interrupted = true;
                return ControlFlow::Break(());
            }
            for (at, bytes) in search.found(store, &offer) {
                let repaired = write(store, at, &bytes, report);
                if matches!(repaired, Ok(true)) {
                    donated.sectors += 1;
                    let range = bad.binary_search_by_key(&at, |range| range.at);
                    if let Some(range) = range.ok().and_then(|at| bad.get_mut(at)) {
                        range.state = State::Donated(nth);
                    }
                }
                if let Err(error) = repaired {
                    failed = Err(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        donated.error = offered.err().map(|error| error.to_string());
        report.donated.push(donated);
        failed?;
        if report.interrupted {
            break;
        }
    }
    Ok(())
}

impl Search {
    fn new(engine: &Arc<Engine>, bad: &[BadRange]) -> Result<Self> {
        let store: &Arc<Store> = engine;
        let sector = u64::from(store.sectorsize);
        let lost: Vec<BadRange> = bad
            .iter()
            .filter(|range| range.state == State::Lost)
            .take(MOST_WANTED)
            .copied()
            .collect();
        let mut paths = Vec::new();
        let mut places: HashMap<u64, Vec<(usize, u64)>> = HashMap::new();
        for file in files::parts(engine, &lost, MOST_WANTED)? {
            // The bytes of a compressed extent are at no offset of the file.
            let Some(logical) = file.logical else {
                continue;
            };
            for done in (0..file.len).step_by(sector as usize) {
                let owners = places.entry(logical + done).or_default();
                owners.push((paths.len(), file.offset + done));
            }
            paths.push(file.path);
        }
        let mut wanted: HashMap<Checksum, Vec<Wanted>> = HashMap::new();
        for range in lost {
            let at = range.at;
            let sums = store
                .checksums
                .lookup(store, at.saturating_sub(sector), 3 * sector)?;
            let &[before, Some(own), after] = &*sums else {
                continue;
            };
            let mut physical = Vec::new();
            for copy in 0..store.volume.copies(at)? {
                let pieces = store.volume.map(at, sector, copy)?;
                physical.extend(pieces.iter().map(|piece| piece.physical));
            }
            wanted.entry(own).or_default().push(Wanted {
                logical: at,
                neighbours: [before, after],
                places: places.remove(&at).unwrap_or_default(),
                physical,
            });
        }
        Ok(Self {
            sector: sector as usize,
            wanted,
            paths,
            before: Before::default(),
        })
    }

    /// Takes the next sector of a donor. Returns lost sectors that were found, with their bytes, and
    /// does not look for them any more.
    fn found(&mut self, store: &Store, offer: &Offer<'_>) -> Vec<(u64, Vec<u8>)> {
        let sum = store.checksum.compute(offer.bytes);
        let before = &self.before;
        let follows = before.end == offer.offset && before.path.as_deref() == offer.path;
        let previous = before.sum.filter(|_| follows);
        let mut found = Vec::new();
        if let Some(previous) = previous.filter(|_| !before.bytes.is_empty()) {
            let is_next = |wanted: &Wanted| wanted.neighbours[1] == Some(sum);
            let bytes = std::mem::take(&mut self.before.bytes);
            let taken = self.taken(&previous, is_next).into_iter();
            found.extend(taken.map(|at| (at, bytes.clone())));
        }
        let conclusive = sum.as_bytes().len() >= CONCLUSIVE;
        let paths = std::mem::take(&mut self.paths);
        let is_it = |wanted: &Wanted| {
            conclusive
                || wanted.is_at(offer, &paths)
                || (previous.is_some() && wanted.neighbours[0] == previous)
        };
        let bytes = offer.bytes;
        let taken = self.taken(&sum, is_it).into_iter();
        found.extend(taken.map(|at| (at, bytes.to_vec())));
        self.paths = paths;
        self.before.sum = Some(sum);
        self.before.end = offer.offset.saturating_add(bytes.len() as u64);
        if self.before.path.as_deref() != offer.path {
            self.before.path = offer.path.map(<[u8]>::to_vec);
        }
        self.before.bytes.clear();
        if self.wanted.contains_key(&sum) {
            self.before.bytes.extend_from_slice(bytes);
        }
        found
    }

    /// Removes the lost sectors with a checksum that `is_it` accepts. Returns their addresses.
    fn taken(&mut self, sum: &Checksum, is_it: impl Fn(&Wanted) -> bool) -> Vec<u64> {
        let mut taken = Vec::new();
        if let Some(wanted) = self.wanted.get_mut(sum) {
            wanted.retain(|wanted| {
                let is_it = is_it(wanted);
                taken.extend(is_it.then_some(wanted.logical));
                !is_it
            });
            if wanted.is_empty() {
                self.wanted.remove(sum);
            }
        }
        taken
    }
}

impl Wanted {
    /// Whether a donor has it at the same place. A donor without paths is one file, or a device.
    fn is_at(&self, offer: &Offer<'_>, paths: &[Vec<u8>]) -> bool {
        let ends_with = |path: &[u8], end: &[u8]| {
            let rest = path.strip_suffix(end);
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(b"/"))
        };
        let mut places = self.places.iter().filter(|place| place.1 == offer.offset);
        match offer.path {
            None => places.next().is_some() || self.physical.contains(&offer.offset),
            Some(end) => places.any(|(file, _)| {
                let path = paths.get(*file).map(Vec::as_slice);
                path.is_some_and(|path| !end.is_empty() && ends_with(path, end))
            }),
        }
    }
}

/// Overwrites all bad copies of a sector by `bytes`, if it still has their checksum. Returns whether
/// it does.
fn write(store: &Arc<Store>, at: u64, bytes: &[u8], report: &mut ScrubReport) -> Result<bool> {
    let volume = &store.volume;
    let len = bytes.len() as u64;
    let sum = store.checksum.compute(bytes);
    if store.checksums.lookup(store, at, len)? != [Some(sum)] {
        return Ok(false);
    }
    let mut copy = vec![0; bytes.len()];
    for mirror in 0..volume.copies(at)? {
        let pieces = volume.map(at, len, mirror)?;
        let Some(piece) = pieces
            .first()
            .filter(|piece| volume.is_written(piece.devid))
        else {
            continue;
        };
        let read = volume.read_uncounted(at, &mut copy, mirror);
        if read.is_ok() && copy == bytes {
            continue;
        }
        let device = report.devices.entry(piece.devid).or_default();
        match volume.repair(at, bytes, mirror) {
            Ok(()) => {
                device.repaired += 1;
                device.lost = device.lost.saturating_sub(1);
            }
            Err(error) => {
                log::warn!("logical {at}: copy {} is not repaired: {error}", mirror + 1);
                return Ok(false);
            }
        }
    }
    Ok(true)
}
