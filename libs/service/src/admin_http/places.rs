//! The places of connections, and who loses one to a new client.
//!
//! Invariant: no more connections than there are places. The oldest connection of the address that
//! has most of them ends first, so that a client with many takes no place from one with few.
//! Failure: none.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use tokio::task::AbortHandle;

/// Connections, the oldest first.
#[derive(Debug)]
pub struct Places {
    all: VecDeque<(Option<IpAddr>, AbortHandle)>,
    count: usize,
}

impl Places {
    /// So many places; one at least.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let all = VecDeque::with_capacity(count);
        Self { all, count }
    }

    /// Ends a connection if there is no place for another one.
    pub fn make_room(&mut self) {
        self.all.retain(|(_, task)| !task.is_finished());
        while self.all.len() >= self.count.max(1) {
            let mut counts = HashMap::new();
            for (address, _) in &self.all {
                *counts.entry(*address).or_insert(0_usize) += 1;
            }
            let most = counts.values().max().copied();
            let is_of_most = |(address, _): &(_, _)| counts.get(address).copied() == most;
            let oldest = self.all.iter().position(is_of_most).unwrap_or_default();
            if let Some((_, task)) = self.all.remove(oldest) {
                task.abort();
            }
        }
    }

    /// Gives a place to the connection of a client at this address; `None`: on the node.
    pub fn take(&mut self, address: Option<IpAddr>, task: AbortHandle) {
        self.all.push_back((address, task));
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn a_client_with_many_connections_loses_its_own_oldest() {
        let mut places = Places::new(3);
        let mut tasks = Vec::new();
        // One of ours, then a flood.
        for host in [1, 9, 9, 9, 9] {
            places.make_room();
            let task = tokio::spawn(pending::<()>());
            places.take(Some(IpAddr::from([10, 0, 0, host])), task.abort_handle());
            tasks.push(task);
        }
        let mut ended = Vec::new();
        for task in tasks {
            tokio::task::yield_now().await;
            ended.push(task.is_finished());
        }
        assert_eq!(ended, [false, true, true, false, false]);
    }

    #[tokio::test]
    async fn of_equals_the_oldest_ends_and_one_that_has_ended_leaves_its_place() {
        let mut places = Places::new(2);
        let first = tokio::spawn(pending::<()>());
        places.take(Some(IpAddr::from([10, 0, 0, 1])), first.abort_handle());
        let second = tokio::spawn(async {});
        places.take(Some(IpAddr::from([10, 0, 0, 2])), second.abort_handle());
        second.await.unwrap();
        places.make_room();
        assert!(!first.is_finished() && places.all.len() == 1);
        places.take(None, tokio::spawn(pending::<()>()).abort_handle());
        places.make_room();
        assert!(first.await.unwrap_err().is_cancelled());
    }
}
