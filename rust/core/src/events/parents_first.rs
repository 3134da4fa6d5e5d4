//! The order in which a consumer wants stored blocks: none before its parent.

use std::collections::{HashMap, VecDeque};

use super::Event;
use super::residents::Hash;

/// Moves the events to `out`, each stored block behind its parent if that becomes resident later in
/// the list. Otherwise, and for one hash always, the order stays.
///
/// One step of a server can fill a block and the block after it for different sequences, and
/// publishes them in the order of its rows. A consumer that drops a block whose parent it does not
/// know must lose nothing.
pub(super) fn parents_first(events: Vec<Event>, out: &mut Vec<Event>) {
    let mut places: HashMap<Hash, VecDeque<usize>> = HashMap::new();
    for (at, event) in events.iter().enumerate() {
        places.entry(hash_of(event)).or_default().push_back(at);
    }
    let mut left: Vec<Option<Event>> = events.into_iter().map(Some).collect();
    let mut line = Vec::new();
    for first in 0..left.len() {
        // From the child up, as far as there is an ancestor to come. Taking each event on the way
        // ends the walk even if somebody published blocks that are each other's parents.
        let mut at = Some(first);
        while let Some(event) = at.and_then(|at| left[at].take()) {
            if let Some(places) = places.get_mut(&hash_of(&event)) {
                places.pop_front();
            }
            // If the parent is removed next, it is resident here.
            at = parent_of(&event)
                .and_then(|parent| places.get(&parent)?.front().copied())
                .filter(|&at| matches!(left[at], Some(Event::Stored { .. })));
            line.push(event);
        }
        out.extend(line.drain(..).rev());
    }
}

fn hash_of(event: &Event) -> Hash {
    match event {
        Event::Stored { key, group, .. } | Event::Removed { key, group } => (*key, *group),
        Event::Cleared { .. } => unreachable!("it comes before all others of its drain"),
    }
}

fn parent_of(event: &Event) -> Option<Hash> {
    match event {
        Event::Stored { parent, group, .. } => Some(((*parent)?, *group)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockKey;

    fn key(i: i64) -> BlockKey {
        BlockKey([i as u64, 0, 0, 0])
    }

    fn stored(i: i64, parent: Option<i64>) -> Event {
        Event::Stored {
            key: key(i),
            parent: parent.map(key),
            tokens: [].into(),
            group: 0,
        }
    }

    fn removed(i: i64) -> Event {
        Event::Removed {
            key: key(i),
            group: 0,
        }
    }

    /// Names stored blocks by their number, removed ones by its negative.
    fn order(events: impl IntoIterator<Item = Event>) -> Vec<i64> {
        let mut out = vec![];
        parents_first(events.into_iter().collect(), &mut out);
        out.iter()
            .map(|event| {
                let number = hash_of(event).0.0[0] as i64;
                if matches!(event, Event::Removed { .. }) {
                    -number
                } else {
                    number
                }
            })
            .collect()
    }

    #[test]
    fn no_block_comes_before_its_parent_and_none_goes_missing() {
        let links = [
            (3, Some(2)),
            (5, None),
            (4, Some(2)),
            (2, Some(1)),
            (1, None),
            (7, Some(6)),
        ];
        assert_eq!(
            order(links.map(|(i, parent)| stored(i, parent))),
            [1, 2, 3, 5, 4, 7]
        );
    }

    #[test]
    fn a_parent_that_is_resident_until_later_is_left_where_it_is() {
        let events = [removed(9), stored(2, Some(1)), removed(1), stored(1, None)];
        assert_eq!(order(events), [-9, 2, -1, 1]);
    }

    #[test]
    fn a_parent_that_comes_goes_and_comes_again_does_so_in_this_order() {
        let events = [
            stored(2, Some(1)),
            stored(1, None),
            removed(1),
            stored(3, Some(1)),
            stored(1, None),
        ];
        assert_eq!(order(events), [1, 2, -1, 1, 3]);
    }

    #[test]
    fn blocks_that_are_each_others_parents_come_out_once() {
        assert_eq!(order([stored(1, Some(2)), stored(2, Some(1))]), [2, 1]);
        assert_eq!(order([stored(1, Some(1))]), [1]);
    }

    #[test]
    fn a_chain_as_long_as_a_pool_does_not_exhaust_the_stack() {
        let links = (0..200_000).map(|i| stored(i, Some(i + 1)));
        assert!(order(links).into_iter().eq((0..200_000).rev()));
    }
}
