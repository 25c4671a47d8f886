//! Opens the image store at the start of the daemon.
//!
//! Invariant: what is opened lists only images with a complete file, and nothing in the directory is left
//! that no record needs; downloads that can be continued stay.
//! Failure: a directory, database or setting that cannot be used.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use service::locks::Locks;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::addresses::Guard;
use super::adjustable::{Adjustable, Live};
use super::catalog::{Catalog, Rows};
use super::client::Clients;
use super::digest::Digest;
use super::download::Downloader;
use super::error::{Error, Result};
use super::mappings::Mappings;
use super::pod_pulls::PodPulls;
use super::pull::{self, Diskless};
use super::registry::Registries;
use super::settings::Settings;
use super::share::Downloads;
use super::store::Store;
use super::translate::Translator;
use super::{Images, Inner, rows};
use crate::metadata::Db;

impl Images {
    /// Opens the store: makes its directories, forgets images whose file is gone or has another
    /// size, and removes files that nothing needs. Downloads of the last day that can be continued
    /// stay.
    pub async fn open(db: Db, settings: Settings) -> Result<Self> {
        let translator = Translator::new(settings.protocol, &settings.translations)?;
        let live = Arc::new(Live::new(Adjustable::from(&settings)));
        let converter = settings.converter.clone();
        let boot_id_file = settings.boot_id_file.clone();
        let metrics = Arc::clone(&settings.metrics);
        let collection = settings.collection;
        let rows = rows::load(&db).await?;
        let shared = Arc::clone(&live);
        let prepare = move || {
            let guard = Guard::new(&settings.allowed_addresses, settings.private_addresses);
            let (clients, client) = Clients::open(&settings, &guard)?;
            let more = clients.clone();
            let registries = Registries::new(&settings, &shared, move || more.builder());
            let mappings = Mappings::new(
                [
                    settings.translations_dir.clone(),
                    settings.cluster_mappings_dir.clone(),
                ],
                Arc::clone(&shared),
                translator,
                clients,
                Arc::clone(&settings.metrics),
            );
            mappings.read();
            let downloader = Downloader::new(client, guard, &settings, shared);
            let store = Store::open(settings.dir, settings.readers)?;
            let lost = survey(&store, &rows);
            Ok::<_, Error>((downloader, registries, mappings, lost, store, rows))
        };
        let (downloader, registries, mappings, lost, store, mut rows) =
            tokio::task::spawn_blocking(prepare).await??;
        rows::lost(&db, lost.clone()).await?;
        lost.iter().for_each(|digest| rows.forget(*digest));

        let wanted = rows.wanted();
        let collecting = store.clone();
        let collect = move || collecting.collect(wanted.as_ref());
        let collected = tokio::task::spawn_blocking(collect).await??;
        tracing::info!(
            images = rows.entries.len(),
            lost = lost.len(),
            collected,
            "image store opened"
        );
        Ok(Self {
            inner: Arc::new(Inner {
                catalog: Catalog::new(store.data().to_owned(), rows),
                db,
                store,
                locks: Locks::default(),
                downloads: Downloads::default(),
                pod_pulls: PodPulls::default(),
                downloader,
                extractions: Arc::new(Semaphore::new(pull::EXTRACTIONS)),
                diskless: Diskless::default(),
                mappings: Arc::new(mappings),
                registries: Arc::new(registries),
                live,
                converter,
                boot_id_file,
                tasks: TaskTracker::new(),
                stopping: CancellationToken::new(),
                collection,
                users: OnceLock::new(),
                collecting: tokio::sync::Mutex::default(),
                short: AtomicBool::default(),
                metrics,
            }),
        })
    }
}

/// Images that are to be forgotten: without their file, or removed and not pinned. Blocks.
fn survey(store: &Store, rows: &Rows) -> Vec<Digest> {
    let lost = rows.entries.iter().filter(|(digest, entry)| {
        let unneeded = entry.removed && !rows.is_pinned(**digest);
        unneeded || !store.holds(**digest, entry.facts.size)
    });
    lost.map(|(digest, _)| *digest).collect()
}
