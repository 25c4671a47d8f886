//! Connects the services of the daemon with their real helpers; no other module does.
//!
//! Invariant: services are built and rows are loaded before the first request; helpers that are
//! away are waited for in the background, never at start-up.
//! Failure: [`Error`] names the part that keeps the daemon from starting.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use libvirt::{Hypervisor as _, Libvirt};
use tapmanager::client::Client;

use crate::block::Blocks;
use crate::disk::Disks;
use crate::disk::qemu_img::QemuImg;
use crate::events::Events;
use crate::health;
use crate::images::{self, Images};
use crate::locks::Locks;
use crate::metadata::{self, Db, Table};
use crate::metrics::Metrics;
use crate::node_settings::{Accepted, InForce, Local, NodeSettings};
use crate::platform::Platform;
use crate::space::Space;
use crate::space::ballast::Ballast;
use crate::tasks::Tasks;
use crate::{node, pods, vm};

mod adjust;
mod background;
mod boot;
mod settings;

pub use settings::UnknownUser;

/// The node's own libvirt and owner of networks.
#[derive(Debug)]
pub enum Real {}

impl Platform for Real {
    type Hypervisor = Libvirt;
    type Network = Client;
}

/// The containers, as clients use them.
pub type Containers = vm::Containers<Real>;
/// The sandboxes, as clients use them.
pub type Sandboxes = pods::Sandboxes<Real>;
/// The tasks, as clients use them.
pub type Agenda = node::Agenda<Real>;
/// The running machines, as clients use them.
pub type Machines = node::Machines<Real>;
/// The readiness probes, as clients use them.
pub type Probes = node::Probes<Real>;
/// The health check, as clients use it.
pub type Health = health::Health<Real>;

/// Why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory of the state cannot be made.
    #[error("prepare directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// Another daemon works on the same state.
    #[error("another vmlet uses {}", .0.display())]
    Taken(PathBuf),
    /// The file that keeps others away cannot be had.
    #[error("lock {}", path.display())]
    Claim {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// The database cannot be opened or read.
    #[error(transparent)]
    Metadata(#[from] metadata::Error),
    /// The image store cannot be opened.
    #[error("open the image store")]
    Images(#[from] images::Error),
    /// QEMU cannot run as the configured user.
    #[error(transparent)]
    User(#[from] UnknownUser),
}

/// The daemon's services.
#[derive(Debug, Clone)]
pub struct App {
    /// Pod sandboxes.
    pub sandboxes: Arc<Sandboxes>,
    /// Containers.
    pub containers: Arc<Containers>,
    /// Disks that outlive pods.
    pub disks: Arc<Disks>,
    /// Images.
    pub images: Arc<Images>,
    /// Changes of sandboxes and containers.
    pub events: Arc<Events>,
    /// The state of the helpers.
    pub health: Arc<Health>,
    /// Tasks of the node API.
    agenda: Arc<Agenda>,
    /// What is known of machines that run.
    machines: Arc<Machines>,
    /// Readiness probes of machines.
    probes: Arc<Probes>,
    /// Copies of disks for clients.
    exports: node::Exports,
    /// Those of the cluster.
    settings: Arc<NodeSettings>,
    identity: node::Identity,
    hypervisor: Arc<Libvirt>,
    tasks: Tasks,
    db: Db,
    _claim: Arc<File>,
}

impl App {
    /// Opens the state and starts the background work.
    pub async fn start(local: impl Into<Local>) -> Result<Self, Error> {
        let local = local.into();
        let config = local.config();
        let database = config.state_dir.join("vmlet.db");
        Db::refuse_later(&database)?;
        prepare_directories(&config.state_dir)?;
        let claim = claim(&config.state_dir)?;
        // Before the database, which may need the space.
        let ballast = Arc::new(Ballast::new(&config.state_dir));
        ballast.look();
        let db = Db::open(&database).or_else(|error| {
            if ballast.give_up() {
                Db::open(&database)
            } else {
                Err(error)
            }
        })?;
        let accepted = Accepted::load(&db, &local).await?;
        let config = &local.with(&accepted);
        if let Some(level) = local.level() {
            level.set(&config.log.level);
        }
        let installation = metadata::node::installation(&db).await?;
        let metrics = Arc::new(Metrics::default());
        let machines = settings::machines(config, installation.clone())?;
        let space = Space::new(config.images.reserve.bytes());
        let qemu_img = QemuImg::new(machines.gid);
        let image_settings = images::Settings {
            metrics: Arc::clone(&metrics),
            converter: Some(Arc::new(qemu_img.clone())),
            ..settings::images(config, machines.gid, space.clone())
        };
        let images = Arc::new(Images::open(db.clone(), image_settings).await?);
        let root = Disks::directory_of(&config.state_dir);
        let budget = settings::budget(config, space, db.clone()).await?;
        let disks = Disks::open(
            db.clone(),
            Arc::clone(&images),
            qemu_img.clone().within(budget),
            root,
        )
        .await?;
        let disks = Arc::new(disks);
        let root = Blocks::directory_of(&config.state_dir);
        let blocks = Blocks::open(db.clone(), root, qemu_img).await?;
        let observer = Arc::clone(&metrics) as Arc<dyn libvirt::Observer>;
        let hypervisor = Arc::new(Libvirt::connect_observed(
            config.libvirt.uri.to_string(),
            settings::libvirt(config),
            Some(observer),
        ));
        let network = Arc::new(Client::new(
            config.network.tapmanager_socket.to_path_buf(),
            config.network.timeout.get(),
        ));
        let sandbox_rows = Arc::new(Table::load(db.clone()).await?);
        let container_rows = Arc::new(Table::load(db.clone()).await?);
        images.set_users(Arc::clone(&container_rows) as Arc<dyn images::Users>);
        let events = Events::following(&sandbox_rows, &container_rows);
        let locks = Locks::default();
        let tasks = Tasks::default();
        let parts = vm::Parts {
            table: container_rows,
            sandboxes: Arc::clone(&sandbox_rows),
            hypervisor: Arc::clone(&hypervisor),
            network: Arc::clone(&network),
            images: Arc::clone(&images),
            disks: Arc::clone(&disks),
            blocks: Arc::new(blocks),
            locks: locks.clone(),
            tasks: tasks.clone(),
            metrics,
        };
        let containers = Arc::new(Containers::new(parts, machines));
        let sandboxes = Sandboxes::new(
            sandbox_rows,
            Arc::clone(&network),
            Arc::clone(&containers),
            locks,
            tasks.clone(),
        );
        let agenda = Agenda::open(
            db.clone(),
            Arc::clone(&containers),
            Arc::clone(&hypervisor),
            Arc::clone(&disks),
            Arc::clone(&images),
            tasks.clone(),
            settings::limits(config),
        );
        let machines = Machines::new(Arc::clone(&containers), Arc::clone(&hypervisor));
        let running = adjust::Running {
            containers: Arc::clone(&containers),
            images: Arc::clone(&images),
            level: local.level(),
        };
        let path = node::Exports::directory_of(&config.state_dir);
        let pods: Arc<dyn crate::backup::Claims> = Arc::clone(&containers) as _;
        let targets = settings::targets(config).with_claims(pods);
        let exports = node::Exports::open(Arc::clone(&disks), targets.clone(), path.clone());
        let app = Self {
            exports: exports.map_err(|source| Error::Directory { path, source })?,
            settings: Arc::new(NodeSettings::new(
                db.clone(),
                local.clone(),
                accepted,
                Arc::new(running),
                tasks.clone(),
            )),
            agenda: Arc::new(agenda.await?.with_targets(targets)),
            machines: Arc::new(machines),
            probes: Arc::new(Probes::new(Arc::clone(&containers))),
            identity: node::Identity {
                installation,
                boot: boot::read(&config.boot_id_file).unwrap_or_default(),
            },
            sandboxes: Arc::new(sandboxes),
            events,
            health: Arc::new(Health::new(
                Arc::clone(&hypervisor),
                network,
                Arc::clone(&containers),
            )),
            containers,
            disks,
            images,
            hypervisor,
            tasks,
            db: db.clone(),
            _claim: Arc::new(claim),
        };
        app.settle_boot(&db, &config.boot_id_file).await?;
        app.start_background(ballast);
        Ok(app)
    }

    /// What the node API is served from.
    pub fn node_services(&self) -> node::Services<Real> {
        node::Services {
            identity: self.identity.clone(),
            agenda: Arc::clone(&self.agenda),
            machines: Arc::clone(&self.machines),
            probes: Arc::clone(&self.probes),
            containers: Arc::clone(&self.containers),
            disks: Arc::clone(&self.disks),
            exports: self.exports.clone(),
            settings: Arc::clone(&self.settings),
            images: Arc::clone(&self.images),
            health: Arc::clone(&self.health),
        }
    }

    /// Kind and state of each task that has not ended.
    pub(crate) fn open_tasks(&self) -> Vec<(String, String)> {
        let mut open = self.agenda.all();
        open.retain(|task| !task.state.is_end());
        let open = open.iter();
        open.map(|task| (task.work.kind().to_owned(), format!("{:?}", task.state)))
            .collect()
    }

    /// The settings that a cluster can give, as they are.
    pub(crate) fn settings_in_force(&self) -> Vec<InForce> {
        self.settings.in_force()
    }

    /// How many rows of each table cannot be read.
    pub(crate) fn unreadable(&self) -> BTreeMap<&'static str, usize> {
        self.db.unreadable()
    }

    /// Whether there is a connection to libvirt.
    pub(crate) fn is_connected(&self) -> bool {
        self.hypervisor.is_connected()
    }

    /// Ends the background work; machines run on. Waits at most `deadline` for requests in
    /// progress.
    pub async fn stop(self, deadline: Duration) {
        let settled = async {
            self.tasks.wait().await;
            self.images.settle().await;
        };
        if tokio::time::timeout(deadline, settled).await.is_err() {
            tracing::warn!("requests in progress abandoned: the next start settles them");
        }
        self.containers.release_consoles().await;
    }
}

/// Keeps the state for this process alone until it ends, however it ends.
fn claim(state: &Path) -> Result<File, Error> {
    let path = state.join("lock");
    let failed = |source| Error::Claim {
        path: path.clone(),
        source,
    };
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600);
    let file = file.open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Taken(state.to_owned())),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Directories that QEMU's user may traverse and no user may list.
fn prepare_directories(state: &Path) -> Result<(), Error> {
    let paths = vm::Paths::new(state);
    let disks = Disks::directory_of(state);
    let devices = Blocks::directory_of(state);
    let pods = paths.pods();
    let consoles = paths.consoles();
    let seeds = paths.seeds();
    let processes = paths.processes();
    for path in [state.to_owned(), pods, consoles, seeds, disks, devices] {
        let prepared = std::fs::create_dir_all(&path)
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o711)));
        prepared.map_err(|source| Error::Directory { path, source })?;
    }
    let prepared = std::fs::create_dir_all(&processes).and_then(|()| {
        std::fs::set_permissions(&processes, std::fs::Permissions::from_mode(0o700))
    });
    let path = processes;
    prepared.map_err(|source| Error::Directory { path, source })?;
    Ok(())
}
