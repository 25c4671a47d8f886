//! One SQLite connection, used from blocking threads.
//!
//! Invariant: statements run one after the other, in WAL mode, with foreign keys on; the schema is
//! the newest migration before the first statement.
//! Failure: [`Error::Private`], [`Error::Open`], [`Error::Migrate`] and [`Error::Later`] stop the
//! start of the daemon, the last one before anything is changed; [`Error::Statement`] fails one
//! request.

use std::collections::BTreeMap;
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, OpenFlags};
use rusqlite_migration::{M, Migrations};

use super::aside::{Aside, Unread, Unreadable};

/// Schema steps in order; `user_version` counts the applied ones.
const STEPS: &[M<'static>] = &[
    M::up(include_str!("migrations/0001_initial.sql")),
    M::up(include_str!("migrations/0002_node.sql")),
    M::up(include_str!("migrations/0003_node_api.sql")),
    M::up(include_str!("migrations/0004_block_devices.sql")),
    M::up(include_str!("migrations/0005_wanted_resources.sql")),
    M::up(include_str!("migrations/0006_root_disk_sizes.sql")),
    M::up(include_str!("migrations/0007_registries.sql")),
    M::up(include_str!("migrations/0008_image_use.sql")),
    M::up(include_str!("migrations/0009_pin_texts.sql")),
    M::up(include_str!("migrations/0010_held_guests.sql")),
    M::up(include_str!("migrations/0011_boot_clock.sql")),
    M::up(include_str!("migrations/0012_readiness_probes.sql")),
    M::up(include_str!("migrations/0013_image_access.sql")),
];
const MIGRATIONS: Migrations<'static> = Migrations::from_slice(STEPS);

/// In WAL mode: the log is synced when it is copied to the database, not with each transaction.
const USUAL: &str = "NORMAL";

/// A database that cannot be opened or a statement that fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be made, or not be kept from other users.
    #[error("make database {} for our own user only", path.display())]
    Private {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// The file cannot be opened as a database.
    #[error("open database {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// SQLite's reason.
        #[source]
        source: rusqlite::Error,
    },
    /// The schema cannot be brought to the newest version.
    #[error("bring the schema of {} up to date", path.display())]
    Migrate {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: rusqlite_migration::Error,
    },
    /// A later version has written the file.
    #[error(
        "database {} is of a later version (schema {found}, and this one knows {known}): it is left \
         as it is; start that version again, or a later one", path.display()
    )]
    Later {
        /// The file.
        path: PathBuf,
        /// The version of its schema.
        found: i64,
        /// The newest version that is known.
        known: usize,
    },
    /// A statement failed; it changed nothing.
    #[error("write or read the database")]
    Statement(#[source] rusqlite::Error),
    /// A record cannot be read, and is not to be overwritten.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The statement's thread panicked or the runtime is going down.
    #[error("the database thread ended early")]
    Thread(#[source] tokio::task::JoinError),
}

impl Error {
    /// Whether the file system of the database takes no writes: it is full, read-only, or fails.
    pub fn is_unwritable(&self) -> bool {
        matches!(self, Self::Statement(error) if is_unwritable(error))
    }
}

/// Whether SQLite failed because its file system takes no writes.
pub fn is_unwritable(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{CannotOpen, DiskFull, ReadOnly, SystemIoFailure};
    let rusqlite::Error::SqliteFailure(error, _) = error else {
        return false;
    };
    matches!(
        error.code,
        CannotOpen | DiskFull | ReadOnly | SystemIoFailure
    )
}

/// Outcome of a database call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Handle to the database; clones share the connection.
#[derive(Debug, Clone)]
pub struct Db {
    connection: Arc<Mutex<Connection>>,
    /// Records that cannot be read, by table.
    unreadable: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

impl Db {
    /// Refuses a file that a later version has written, before anything of the state is touched.
    pub fn refuse_later(path: &Path) -> Result<()> {
        if !path.exists() {
            return Ok(());
        }
        let version = || {
            let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            connection.pragma_query_value(None, "user_version", |row| row.get(0))
        };
        let found: i64 = version().map_err(|source| Error::Open {
            path: path.into(),
            source,
        })?;
        let known = STEPS.len();
        if usize::try_from(found).is_ok_and(|found| found <= known) {
            return Ok(());
        }
        Err(Error::Later {
            path: path.into(),
            found,
            known,
        })
    }

    /// Opens or creates the database file and applies missing migrations. Blocks; call at start-up.
    pub fn open(path: &Path) -> Result<Self> {
        Self::refuse_later(path)?;
        // Annotations may contain text that other users must not read; SQLite's other files take
        // this one's mode.
        private(path).map_err(|source| Error::Private {
            path: path.into(),
            source,
        })?;
        let open = || {
            let connection = Connection::open(path)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            Ok(connection)
        };
        let connection = open().map_err(|source| Error::Open {
            path: path.into(),
            source,
        })?;
        Self::prepare(connection, path)
    }

    /// A database that lives as long as its handles: for tests of logic.
    pub fn in_memory() -> Result<Self> {
        let path = Path::new(":memory:");
        let connection = Connection::open_in_memory().map_err(|source| Error::Open {
            path: path.into(),
            source,
        })?;
        Self::prepare(connection, path)
    }

    fn prepare(mut connection: Connection, path: &Path) -> Result<Self> {
        let settings = |c: &Connection| {
            c.pragma_update(None, "synchronous", USUAL)?;
            c.pragma_update(None, "foreign_keys", true)?;
            c.busy_timeout(std::time::Duration::from_secs(5))
        };
        settings(&connection).map_err(|source| Error::Open {
            path: path.into(),
            source,
        })?;
        MIGRATIONS
            .to_latest(&mut connection)
            .map_err(|source| Error::Migrate {
                path: path.into(),
                source,
            })?;
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
            unreadable: Arc::default(),
        })
    }

    /// Reports and counts the rows of a table that cannot be read.
    pub fn report<T>(&self, table: &'static str, rows: Vec<Unread<T>>) -> Aside<T> {
        let unreadable = self.unreadable.lock();
        let mut unreadable = unreadable.unwrap_or_else(PoisonError::into_inner);
        unreadable.insert(table, rows.len());
        drop(unreadable);
        Aside::report(table, rows)
    }

    /// How many rows of each table cannot be read.
    pub fn unreadable(&self) -> BTreeMap<&'static str, usize> {
        let unreadable = self.unreadable.lock();
        unreadable.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs `work` in one transaction on a blocking thread; an error rolls it back. The death of
    /// this process undoes nothing; a power cut may undo what was written last.
    pub async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        self.run(work, None).await
    }

    /// As [`Self::write`], and no power cut undoes it either, nor anything that was written before.
    pub async fn write_through<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        self.run(work, Some("FULL")).await
    }

    async fn run<T, F>(&self, work: F, synchronous: Option<&'static str>) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let connection = Arc::clone(&self.connection);
        tokio::task::spawn_blocking(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(level) = synchronous {
                set_synchronous(&connection, level)?;
            }
            let done = transact(&mut connection, work);
            if synchronous.is_some() {
                set_synchronous(&connection, USUAL)?;
            }
            done
        })
        .await
        .map_err(Error::Thread)?
    }
}

fn transact<T>(
    connection: &mut Connection,
    work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>,
) -> Result<T> {
    let transaction = connection.transaction().map_err(Error::Statement)?;
    let value = work(&transaction).map_err(Error::Statement)?;
    transaction.commit().map_err(Error::Statement)?;
    Ok(value)
}

fn set_synchronous(connection: &Connection, level: &str) -> Result<()> {
    let set = connection.pragma_update(None, "synchronous", level);
    set.map_err(Error::Statement)
}

/// Makes the file if it is missing, with mode 0600 in any case.
fn private(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disks_of_an_earlier_version_have_recorded_sizes() {
        let mut connection = Connection::open_in_memory().unwrap();
        MIGRATIONS.to_version(&mut connection, 5).unwrap();
        let insert = "INSERT INTO vm_disks (key, row) VALUES (?1, ?2)";
        for (key, row) in [
            ("a", r#"{"vm":"a","virtual_bytes":1048576,"linked":true}"#),
            ("being-made", r#"{"vm":"being-made","virtual_bytes":0}"#),
        ] {
            connection.execute(insert, [key, row]).unwrap();
        }
        MIGRATIONS.to_latest(&mut connection).unwrap();
        let mut all = connection
            .prepare("SELECT key, row FROM root_disk_sizes")
            .unwrap();
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let all = all.query_map([], row).unwrap();
        let all: Vec<(String, String)> = all.map(Result::unwrap).collect();
        let size = r#"{"place":"disks/a","virtual_bytes":1048576}"#;
        assert_eq!(all, [("disks/a".to_owned(), size.to_owned())]);
    }

    #[test]
    fn the_database_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vmlet.db");
        std::fs::write(&path, "").unwrap();
        let _db = Db::open(&path).unwrap();
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[tokio::test]
    #[ignore = "needs root"]
    async fn a_power_cut_undoes_nothing_that_was_written_through_or_before() {
        let dir = tempfile::tempdir().unwrap();
        let disk = testfs::Ext4::over(dir.path(), 32).unwrap();
        let path = dir.path().join("vmlet.db");
        let insert = |owner: &'static str| {
            move |t: &rusqlite::Transaction<'_>| {
                let insert = "INSERT INTO image_pins (owner, digest) VALUES (?1, 'x')";
                t.execute(insert, [owner])
            }
        };
        let db = Db::open(&path).unwrap();
        db.write(insert("before")).await.unwrap();
        db.write_through(insert("through")).await.unwrap();
        db.write(insert("later")).await.unwrap();
        disk.cut().unwrap();
        drop(db);
        disk.recover().unwrap();
        let db = Db::open(&path).unwrap();
        let list = "SELECT group_concat(owner) FROM (SELECT owner FROM image_pins ORDER BY 1)";
        let left = db.write(move |t| t.query_row(list, [], |row| row.get::<_, String>(0)));
        assert_eq!(left.await.unwrap(), "before,through");
    }

    #[test]
    fn the_migrations_are_valid_sql_in_order() {
        MIGRATIONS.validate().unwrap();
    }

    #[tokio::test]
    async fn a_failed_transaction_changes_nothing() {
        let db = Db::in_memory().unwrap();
        let failed = db
            .write(|t| {
                t.execute(
                    "INSERT INTO image_pins (owner, digest) VALUES ('a', 'x')",
                    [],
                )?;
                t.execute("INSERT INTO no_such_table VALUES (1)", [])
            })
            .await;
        assert!(failed.is_err());
        let rows: i64 = db
            .write(|t| t.query_row("SELECT count(*) FROM image_pins", [], |r| r.get(0)))
            .await
            .unwrap();
        assert_eq!(rows, 0);
    }
}
