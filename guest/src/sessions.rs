//! The sessions of the agent, by number and by name.
//!
//! Invariant: only the reader of the port adds, binds and closes sessions; a session that is not
//! kept leaves by itself when it ends. At most [`SESSIONS`] are kept, ended ones included, and at
//! most as many others run.
//! Failure: a reason and a sentence for the host.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guestapi::{Adopt, LONGEST_NAME, Reason, SESSIONS, Start};

use crate::session::Session;

/// All sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    /// Those that the host has, by their numbers.
    bound: HashMap<u64, Arc<Session>>,
    /// Those that are kept, by their names.
    kept: HashMap<String, Arc<Session>>,
}

/// Why there is no session.
type Refusal = (Reason, String);

impl Sessions {
    /// Whether another session can start.
    pub(crate) fn admit(&self, start: &Start) -> Result<(), Refusal> {
        let tables = self.lock();
        tables.check_number(start.session)?;
        let name = &start.keep;
        let is_kept = !start.keep.is_empty();
        if name.len() > LONGEST_NAME {
            let message = format!("the name of a session has at most {LONGEST_NAME} bytes");
            return Err((Reason::Other, message));
        }
        if is_kept && tables.kept.contains_key(name) {
            let message = format!("the guest keeps a session {name:?} already");
            return Err((Reason::NoSession, message));
        }
        let others = tables.bound.values().filter(|session| !session.is_kept());
        let (count, kind) = if is_kept {
            (tables.kept.len(), "kept sessions")
        } else {
            (others.count(), "sessions")
        };
        if count < SESSIONS {
            Ok(())
        } else {
            Err((
                Reason::TooMany,
                format!("the guest has {count} {kind} already"),
            ))
        }
    }

    /// Adds a session, which is in the table before its end can remove it.
    pub(crate) fn add(
        &self,
        number: u64,
        run: impl FnOnce() -> io::Result<Arc<Session>>,
    ) -> io::Result<()> {
        let mut tables = self.lock();
        let session = run()?;
        if session.is_kept() {
            let name = session.keep().to_owned();
            tables.kept.insert(name, Arc::clone(&session));
        }
        tables.bound.insert(number, session);
        Ok(())
    }

    /// The session that the host has under this number.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<Session>> {
        self.lock().bound.get(&number).cloned()
    }

    /// The kept session that a host can adopt.
    pub(crate) fn find(&self, adopt: &Adopt) -> Result<Arc<Session>, Refusal> {
        let tables = self.lock();
        tables.check_number(adopt.session)?;
        let session = tables.kept.get(&adopt.keep).cloned();
        let session = session.ok_or_else(|| {
            let message = format!("the guest keeps no session {:?}", adopt.keep);
            (Reason::NoSession, message)
        })?;
        let checked = session.check(adopt);
        checked.map_err(|message| (Reason::NoSession, message))?;
        Ok(session)
    }

    /// The host has a kept session under a new number.
    pub(crate) fn bind(&self, session: &Arc<Session>, adopt: &Adopt) {
        let mut tables = self.lock();
        if let Some(former) = session.number() {
            tables.bound.remove(&former);
        }
        tables.bound.insert(adopt.session, Arc::clone(session));
        drop(tables);
        session.bind(adopt);
    }

    /// A session has ended by itself.
    pub(crate) fn ended(&self, number: u64, pid: i32) {
        let mut tables = self.lock();
        // A later connection may have one of this number.
        let is_same = |session: &Arc<Session>| session.pid().as_raw() == pid;
        if tables.bound.get(&number).is_some_and(is_same) {
            tables.bound.remove(&number);
        }
    }

    /// The host closes a session.
    pub(crate) fn close(&self, number: u64) {
        let mut tables = self.lock();
        let session = tables.bound.remove(&number);
        if let Some(session) = &session {
            tables.kept.remove(session.keep());
        }
        drop(tables);
        if let Some(session) = session {
            session.close();
        }
    }

    /// The host is gone: sessions that are not kept end.
    pub(crate) fn leave(&self) {
        let all = std::mem::take(&mut self.lock().bound);
        for session in all.into_values() {
            session.leave();
        }
    }

    /// Ends all.
    pub(crate) fn close_all(&self) {
        let tables = std::mem::take(&mut *self.lock());
        let all = tables.bound.into_values().chain(tables.kept.into_values());
        for session in all {
            session.close();
        }
    }

    /// The kept sessions of these names; all of them without names.
    pub(crate) fn kept(&self, names: &[String]) -> Vec<Arc<Session>> {
        let tables = self.lock();
        let all = tables.kept.values();
        let those = all
            .filter(|session| names.is_empty() || names.iter().any(|name| name == session.keep()));
        those.cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn check_number(&self, number: u64) -> Result<(), Refusal> {
        if self.bound.contains_key(&number) {
            Err((
                Reason::Other,
                format!("the guest has a session {number} already"),
            ))
        } else {
            Ok(())
        }
    }
}
