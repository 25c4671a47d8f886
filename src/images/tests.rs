//! The image store against a real HTTP server on loopback.
//!
//! Invariant: each test has a store, a database and a server of its own in a scratch directory.
//! Failure: waits have a deadline; what a failed test made is removed with its scratch directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::*;

mod access;
mod addresses;
mod checksums;
mod collect;
mod convert;
mod crash;
mod early;
mod inspect;
mod keep;
mod limits;
mod mappings;
mod mirrors;
mod names;
mod packed;
mod power_cut;
mod registries;
mod restart;
mod room;
mod server;
mod sharing;
mod space;
mod tls;
mod transfer;
mod transports;
mod upload;
mod urls;
mod varieties;

use server::{Server, Step};

const TIMEOUT: Duration = Duration::from_secs(90);

/// A store with a server to pull from.
struct TestEnvironment {
    images: Images,
    server: Server,
    settings: Settings,
    db: Db,
    _scratch: TempDir,
}

impl TestEnvironment {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(adjust: impl FnOnce(&mut Settings)) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let mut settings = settings(scratch.path());
        adjust(&mut settings);
        let db = Db::in_memory().unwrap();
        Self {
            images: Images::open(db.clone(), settings.clone()).await.unwrap(),
            server: Server::start().await,
            settings,
            db,
            _scratch: scratch,
        }
    }

    /// The same store after a restart of the daemon.
    async fn reopened(self) -> Self {
        self.images.settle().await;
        let images = Images::open(self.db.clone(), self.settings.clone()).await;
        Self {
            images: images.unwrap(),
            ..self
        }
    }

    /// Offers a raw disk and pulls it as `path:latest`.
    async fn pulled(&self, path: &str, disk: &[u8]) -> Image {
        self.server.offer(path, disk, "1");
        self.images.pull(&self.server.name(path)).await.unwrap()
    }

    fn partials(&self) -> Vec<PathBuf> {
        files(&self.settings.dir.join("partial"))
    }

    fn data(&self) -> Vec<PathBuf> {
        files(&self.settings.dir.join("data"))
    }
}

fn settings(dir: &Path) -> Settings {
    Settings {
        protocol: Protocol::Http,
        retry_wait: Duration::from_millis(1),
        proxy: Proxy::Direct,
        allowed_addresses: vec!["127.0.0.1/32".parse().unwrap()],
        raw_data: RawData::Allow,
        ..Settings::new(dir.join("images"))
    }
}

/// A raw disk whose content depends on `seed`.
fn disk(sectors: usize, seed: u8) -> Vec<u8> {
    let byte = |i: usize| (i % 251).to_le_bytes()[0] ^ (i / 251).to_le_bytes()[0] ^ seed;
    (0..sectors * 512).map(byte).collect()
}

fn digest_of(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Lets everything else run until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting)
        .await
        .expect("in time");
}

/// Lets every other task continue until it waits for something else.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
