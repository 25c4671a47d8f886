//! The pod network's owner: wire types for everyone, a client for the daemon, the server for the
//! program `vmlet-tapmanager`.
//!
//! Invariant: `wire` and `client` contain no server code, so that the daemon links none of it.
//! Failure: see `wire::ErrorCode` for what a caller can meet.
//!
//! # Example
//!
//! ```no_run
//! # async fn print() -> Result<(), tapmanager::client::Error> {
//! use std::time::Duration;
//!
//! use tapmanager::client::Client;
//!
//! let client = Client::new("/run/vmlet/tapmanager.sock", Duration::from_secs(90));
//! println!("{:?}", client.list().await?);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "client")]
pub mod client;
pub mod wire;

/// Points at which a test may kill `vmlet-tapmanager` (crate `faultpoint`): one after every step
/// that leaves something behind.
pub const FAULT_POINTS: [&str; 12] = [
    "tap.add.journaled",
    "tap.add.netns",
    "tap.add.cni",
    "tap.add.links",
    "tap.add.up",
    "tap.del.journaled",
    "tap.del.links",
    "tap.del.cni",
    "tap.del.netns",
    "tap.del.forgotten",
    "tap.start.token",
    "tap.handoff.consumed",
];

#[cfg(test)]
mod tests {
    use super::FAULT_POINTS;

    #[test]
    fn every_fault_point_is_in_the_sources_once() {
        let sources: String = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))
            .unwrap()
            .chain(
                std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/sandboxes")).unwrap(),
            )
            .map(|file| file.unwrap().path())
            .filter(|path| path.is_file() && !path.ends_with("lib.rs"))
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect();
        for point in FAULT_POINTS {
            let call = format!("faultpoint::point(\"{point}\")");
            assert_eq!(sources.matches(&call).count(), 1, "{point}");
        }
        assert_eq!(
            sources.matches("faultpoint::point(").count(),
            FAULT_POINTS.len()
        );
    }
}
