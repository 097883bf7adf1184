//! On which NUMA nodes the memory of a region lies: what is asked of the kernel before there is any page, and what it
//! says came of it.
//!
//! The kernel keeps what it was asked for with the file in memory, so nothing of it stands in the region, and whoever
//! maps it can look it up.

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;

use super::layout::{Layout, Part};
use super::map::Map;
use super::memory::{kib, whole};
use crate::config::ConfigError;
use crate::error::{CreateError, PlacementError};
use crate::sys;

/// On which NUMA nodes the memory of a region lies.
///
/// The default, [`first_touch`](Placement::first_touch), is right where all parties run on the node of the creator, or
/// there is but one. Else: what the sequencer writes and everybody reads belongs near the sequencer, a lane near its
/// producer, for that one alone writes it. Lanes and workers' pages are given away in the order of their numbers, the
/// lowest that never had an owner first.
///
/// Needs a file in memory: on a disk the kernel heeds no such wish. A *huge* page lies on the node of the part in which
/// it begins.
///
/// ```
/// use seriatim::{Config, CreateError, Placement, Region};
///
/// // All on node 0, the lanes in turn on nodes 0 and 1.
/// let config = Config::new().placement(Placement::on(0).lanes([0, 1]));
/// match Region::anonymous(&config) {
///     Err(CreateError::Placement(error)) => println!("{error}"), // no NUMA node 1 for …: the machine has 0
///     other => drop(other?),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Placement {
    all: Site,
    lanes: Vec<u32>,
    workers: Vec<u32>,
}

/// Where pages come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Site {
    #[default]
    FirstTouch,
    Interleave,
    Node(u32),
}

impl Placement {
    /// Nothing is asked: the creator touches every page, so they lie on the node that its thread runs on, as long as
    /// there is room, or where the memory policy of its process (`numactl`) or of the file system says. The default.
    pub fn first_touch() -> Self {
        Self::default()
    }

    /// Page by page on all nodes in turn that the creator may use: equally far from everybody.
    pub fn interleave() -> Self {
        Placement { all: Site::Interleave, ..Self::default() }
    }

    /// On this node and no other.
    pub fn on(node: u32) -> Self {
        Placement { all: Site::Node(node), ..Self::default() }
    }

    /// Lanes lie elsewhere than the rest: the first on the first of these nodes and so on, beginning anew behind the
    /// last. Not more nodes than there are lanes.
    pub fn lanes(mut self, nodes: impl Into<Vec<u32>>) -> Self {
        self.lanes = nodes.into();
        self
    }

    /// The pages of workers lie elsewhere than the rest, as those of [`lanes`](Self::lanes).
    pub fn workers(mut self, nodes: impl Into<Vec<u32>>) -> Self {
        self.workers = nodes.into();
        self
    }

    /// Checks that nothing is said of parts that there are not.
    pub(crate) fn check(&self, producers: u64, workers: u64) -> Result<(), ConfigError> {
        let said = [("nodes of lanes", &self.lanes, producers), ("nodes of workers", &self.workers, workers)];
        for (field, nodes, high) in said {
            let found = nodes.len() as u64;
            if found > high {
                return Err(ConfigError::Range { field, found, low: 0, high });
            }
        }
        Ok(())
    }

    /// The ranges of which something is asked, in order; what lies together and is asked the same is one.
    fn sites(&self, layout: &Layout) -> Vec<(Range<u64>, Site)> {
        let dealt = |nodes: &[u32], number: u16| match nodes {
            [] => self.all,
            _ => Site::Node(nodes[(usize::from(number) - 1) % nodes.len()]),
        };
        let mut sites: Vec<(Range<u64>, Site)> = Vec::new();
        for (part, range) in parts(layout) {
            let site = match part {
                PlacedPart::Shared => self.all,
                PlacedPart::Lane(number) => dealt(&self.lanes, number),
                PlacedPart::Worker(slot) => dealt(&self.workers, slot + 1),
            };
            match sites.last_mut() {
                Some((before, same)) if *same == site => before.end = range.end,
                _ => sites.push((range, site)),
            }
        }
        sites.retain(|&(_, site)| site != Site::FirstTouch);
        sites
    }
}

/// A part of a region that can have a place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlacedPart {
    /// All before the lanes: header, control, order, tickets, bells, errors, the sequencer's own lane.
    Shared,
    /// The lane of this number, from 1.
    Lane(u16),
    /// The page of the worker in this slot, from 0.
    Worker(u16),
}

fn parts(layout: &Layout) -> Vec<(PlacedPart, Range<u64>)> {
    let mut parts = vec![(PlacedPart::Shared, 0..layout.lanes)];
    let lanes = 1..=layout.geometry.producers as u16;
    parts.extend(lanes.map(|lane| (PlacedPart::Lane(lane), layout.range(Part::Lane(lane)))));
    let slots = 0..layout.geometry.workers as u16;
    parts.extend(slots.map(|slot| (PlacedPart::Worker(slot), layout.range(Part::Worker(slot)))));
    parts
}

/// Asks for the pages of a new file, which has none yet; gives it its length for that.
pub(crate) fn ask(
    file: &File,
    path: &Path,
    layout: Layout,
    placement: &Placement,
) -> Result<(), CreateError> {
    let sites = placement.sites(&layout);
    if sites.is_empty() {
        return Ok(());
    }
    if !sys::is_on_tmpfs(file) {
        return Err(PlacementError::NotInMemory { path: path.into() }.into());
    }
    let usable = check_nodes(path, &sites)?;
    let failed = |what| move |source| CreateError::Io { path: path.into(), what, source };
    file.set_len(layout.total).map_err(failed("size"))?;
    let map = file.try_clone().and_then(|file| Map::new(file, layout, true)).map_err(failed("map"))?;
    for (range, site) in sites {
        let asked = match site {
            Site::Node(node) => map.take_pages_from(range, libc::MPOL_BIND, &[node]),
            _ => map.take_pages_from(range, libc::MPOL_INTERLEAVE, &usable),
        };
        asked.map_err(|source| PlacementError::Refused { path: path.into(), source })?;
    }
    Ok(())
}

/// Looks whether the nodes are there and have room; which of them this process may use. Room is looked for before,
/// because a process that has no node to turn to is killed where there is none.
fn check_nodes(path: &Path, sites: &[(Range<u64>, Site)]) -> Result<Vec<u32>, PlacementError> {
    let path = || path.to_path_buf();
    let (exist, allowed) = (existing(), allowed());
    let usable: Vec<u32> =
        exist.iter().copied().filter(|node| allowed.as_ref().is_none_or(|all| all.contains(node))).collect();
    let mut wanted: Vec<(u32, u64)> = Vec::new();
    for (range, site) in sites {
        let Site::Node(node) = *site else { continue };
        if !usable.contains(&node) {
            return Err(PlacementError::NoNode { path: path(), node, exist, usable });
        }
        add(&mut wanted, node, range.end - range.start);
    }
    for (node, wanted) in wanted {
        if let Some(free) = obtainable(node).filter(|&free| free < wanted) {
            return Err(PlacementError::NoSpace { path: path(), node, wanted, free });
        }
    }
    Ok(usable)
}

fn add(sums: &mut Vec<(u32, u64)>, node: u32, bytes: u64) {
    match sums.iter_mut().find(|(at, _)| *at == node) {
        Some((_, sum)) => *sum += bytes,
        None => sums.push((node, bytes)),
    }
}

/// The nodes that have memory; none where the kernel knows of none.
fn existing() -> Vec<u32> {
    let list = fs::read_to_string("/sys/devices/system/node/has_memory");
    list.ok().and_then(|list| nodes_in(&list)).unwrap_or_default()
}

/// The nodes that this process may take memory from.
fn allowed() -> Option<Vec<u32>> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    nodes_in(status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?)
}

/// The numbers of a list as the kernel writes it: `0,2-4`.
fn nodes_in(list: &str) -> Option<Vec<u32>> {
    let mut nodes = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        nodes.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(nodes)
}

/// Bytes that can be had on a node: what is free, and half of what the kernel keeps for nobody but to be quick.
fn obtainable(node: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).ok()?;
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.split_once(name))?;
        kib(line.1)
    };
    let caches = ["Active(file):", "Inactive(file):", "SReclaimable:"].into_iter().filter_map(of);
    Some(of("MemFree:")? + caches.sum::<u64>() / 2)
}

/// Where a part of a region lies, as the kernel says it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartPlacement {
    /// Which part.
    pub part: PlacedPart,
    /// What the kernel was asked for, in its words: `bind:1`, `interleave:0-1`; `default` if nothing, or what the
    /// process that looks has asked for itself.
    pub asked: String,
    /// The nodes that it lies on, with the bytes on each.
    pub nodes: Vec<(u32, u64)>,
}

/// Where the parts of a file that is complete lie; `None` if that cannot be told without changing it.
pub(crate) fn of(file: &File, layout: Layout) -> Option<Vec<PartPlacement>> {
    let map = whole(file, layout)?;
    let parts = parts(&layout);
    // The kernel tells of each mapping by itself.
    for (_, range) in parts.iter().skip(1).step_by(2) {
        map.set_apart(range.clone()).ok()?;
    }
    map.enter_all().ok()?;
    let mappings = parse(&fs::read_to_string("/proc/self/numa_maps").ok()?);
    let placement_of = |(part, range): (PlacedPart, Range<u64>)| {
        let start = map.address(range.start);
        let Mapping { asked, nodes, .. } = mappings.iter().find(|mapping| mapping.start == start)?;
        Some(PartPlacement { part, asked: asked.clone(), nodes: nodes.clone() })
    };
    parts.into_iter().map(placement_of).collect()
}

/// A mapping of this process, as the kernel describes it.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: usize,
    asked: String,
    /// Bytes on each node.
    nodes: Vec<(u32, u64)>,
}

fn parse(numa_maps: &str) -> Vec<Mapping> {
    let parse_line = |line: &str| {
        let mut words = line.split(' ');
        let start = usize::from_str_radix(words.next()?, 16).ok()?;
        let asked = words.next()?.to_string();
        let page = line.rsplit_once("kernelpagesize_kB=").and_then(|(_, kib)| kib.trim().parse::<u64>().ok());
        // `N0=12`, among others of that kind; in the name of a file `=` and blanks are written in another way.
        let counted = |word: &str| {
            let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
            Some((node.parse().ok()?, pages.parse::<u64>().ok()? * page? * 1024))
        };
        Some(Mapping { start, asked, nodes: words.filter_map(counted).collect() })
    };
    numa_maps.lines().filter_map(parse_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn each_part_is_asked_for_once_and_the_rest_not_at_all() {
        let layout = Config::new().producers(4).workers(3).layout().unwrap();
        let lane = |number| layout.range(Part::Lane(number));
        let sites = |placement: Placement| placement.sites(&layout);
        assert_eq!(sites(Placement::first_touch()), []);
        assert_eq!(sites(Placement::on(2)), [(0..layout.total, Site::Node(2))]);
        assert_eq!(sites(Placement::interleave()), [(0..layout.total, Site::Interleave)]);
        assert_eq!(
            sites(Placement::interleave().lanes([0, 0, 1]).workers([1])),
            [
                (0..layout.lanes, Site::Interleave),
                (lane(1).start..lane(2).end, Site::Node(0)),
                (lane(3), Site::Node(1)),
                (lane(4), Site::Node(0)),
                (layout.workers..layout.total, Site::Node(1)),
            ]
        );
        assert_eq!(
            sites(Placement::first_touch().lanes([5])),
            [(layout.lanes..layout.workers, Site::Node(5))]
        );
    }

    #[test]
    fn the_kernels_lists_of_nodes_are_understood() {
        assert_eq!(nodes_in("0\n"), Some(vec![0]));
        assert_eq!(nodes_in("\t0,2-4,8"), Some(vec![0, 2, 3, 4, 8]));
        assert_eq!(nodes_in("\n"), None);
    }

    #[test]
    fn what_the_kernel_says_of_places_is_understood() {
        let text = "\
7f0000200000 bind:1 file=/dev/shm/N0\\0759 dirty=3 active=0 N0=1 N1=2 kernelpagesize_kB=4
7f0000203000 interleave:0-1 file=/dev/shm/orders
7f0000300000 default anon=1 dirty=1 N0=1 kernelpagesize_kB=2048
";
        let found = parse(text);
        let mapping = |start, asked: &str, nodes| Mapping { start, asked: asked.into(), nodes };
        assert_eq!(
            found,
            [
                mapping(0x7f00_0020_0000, "bind:1", vec![(0, 4096), (1, 8192)]),
                mapping(0x7f00_0020_3000, "interleave:0-1", vec![]),
                mapping(0x7f00_0030_0000, "default", vec![(0, 2 << 20)]),
            ]
        );
    }
}
