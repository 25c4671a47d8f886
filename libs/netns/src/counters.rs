//! Traffic counters of links in many namespaces.
//!
//! Invariant: all namespaces are visited by one thread, which ends afterwards and never returns to
//! a pool: a visit costs some microseconds, a thread each would cost more than the reading.
//! Failure: a namespace that cannot be entered or read is left out.

use std::io::Read;

use nix::sched::{CloneFlags, setns};

use crate::namespace::on_thread;
use crate::{Namespace, NamespaceError};

/// The kernel's table of the calling thread's namespace.
const TABLE: &str = "/proc/thread-self/net/dev";

/// Longest table that is read, in bytes: several thousand links.
const LONGEST: u64 = 1 << 20;

/// What went through a link since it was made, as the kernel of the node counts it: what a guest
/// sends is *received* by its tap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkCounters {
    /// Name of the link.
    pub link: String,
    /// Bytes that came in.
    pub rx_bytes: u64,
    /// Packets that came in.
    pub rx_packets: u64,
    /// Packets that were lost on the way in because of errors.
    pub rx_errors: u64,
    /// Packets that were dropped on the way in.
    pub rx_dropped: u64,
    /// Bytes that went out.
    pub tx_bytes: u64,
    /// Packets that went out.
    pub tx_packets: u64,
    /// Packets that were lost on the way out because of errors.
    pub tx_errors: u64,
    /// Packets that were dropped on the way out.
    pub tx_dropped: u64,
}

/// Counters of every link of every namespace, with the caller's name for it.
///
/// # Errors
/// When the thread cannot be started, or dies.
pub async fn counters<K: Send + 'static>(
    namespaces: Vec<(K, Namespace)>,
) -> Result<Vec<(K, Vec<LinkCounters>)>, NamespaceError> {
    on_thread(move || {
        let visit = |(name, namespace): (K, Namespace)| {
            setns(&namespace, CloneFlags::CLONE_NEWNET).ok()?;
            let mut text = String::new();
            let table = std::fs::File::open(TABLE).ok()?;
            table.take(LONGEST).read_to_string(&mut text).ok()?;
            Some((name, parse(&text)))
        };
        namespaces.into_iter().filter_map(visit).collect()
    })
    .await
}

/// Reads the table: two lines of headings, then `name: 16 numbers`.
fn parse(text: &str) -> Vec<LinkCounters> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<LinkCounters> {
    let (link, numbers) = line.rsplit_once(':')?;
    let numbers: Vec<u64> = numbers
        .split_whitespace()
        .map_while(|number| number.parse().ok())
        .collect();
    let [
        rx_bytes,
        rx_packets,
        rx_errors,
        rx_dropped,
        _,
        _,
        _,
        _,
        tx_bytes,
        tx_packets,
        tx_errors,
        tx_dropped,
        ..,
    ] = *numbers
    else {
        return None;
    };
    Some(LinkCounters {
        link: link.trim().to_owned(),
        rx_bytes,
        rx_packets,
        rx_errors,
        rx_dropped,
        tx_bytes,
        tx_packets,
        tx_errors,
        tx_dropped,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
  tap0: 1500 10 1 2 0 0 0 0 18446744073709551615 20 3 4 0 0 0 0
";

    #[test]
    fn the_kernels_table_is_read() {
        let links = parse(TEXT);
        assert_eq!(links.len(), 2);
        let expected = LinkCounters {
            link: "tap0".to_owned(),
            rx_bytes: 1500,
            rx_packets: 10,
            rx_errors: 1,
            rx_dropped: 2,
            tx_bytes: u64::MAX,
            tx_packets: 20,
            tx_errors: 3,
            tx_dropped: 4,
        };
        assert_eq!(links[1], expected);
        assert!(parse("tap0: 1 2 three").is_empty());
    }

    #[tokio::test]
    #[ignore = "needs root"]
    async fn counters_of_several_namespaces_come_in_one_go_and_leave_the_caller_where_it_is() {
        let scratch = tempfile::tempdir().unwrap();
        let here = std::fs::read_link("/proc/self/ns/net").unwrap();
        let mut namespaces = Vec::new();
        for name in ["a", "b"] {
            let made = Namespace::create(scratch.path(), name).await.unwrap();
            namespaces.push((name, made));
        }
        let counted = counters(namespaces).await;
        for name in ["a", "b"] {
            Namespace::delete(&scratch.path().join(name)).await.unwrap();
        }
        let counted = counted.unwrap();
        let names: Vec<_> = counted.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["a", "b"]);
        for (_, links) in counted {
            assert_eq!((links.len(), links[0].link.as_str()), (1, "lo"));
        }
        assert_eq!(std::fs::read_link("/proc/self/ns/net").unwrap(), here);
    }
}
