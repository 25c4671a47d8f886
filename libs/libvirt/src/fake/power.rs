//! Starts, ends and pauses of the fake's domains, and their saved memory.
//!
//! Invariant: an event is sent after the lock is released.
//! Failure: the errors that the real hypervisor gives in the same place.

use std::path::PathBuf;

use uuid::Uuid;

use super::size::begun;
use super::{FakeDomain, FakeHypervisor, absence};
use crate::read::{Definition, first_disk_files};
use crate::saved::WHOLE;
use crate::{
    End, Error, Event, Hypervisor as _, Layout, Pause, Result, Shutdown, State, is_saved_memory,
};

impl FakeHypervisor {
    pub(super) fn pause(&self, domain: Uuid, paused: Option<Pause>) -> Result<()> {
        let mut inner = self.lock();
        let found = inner.domain(domain)?;
        if found.state != State::Active {
            return Err(Error::Refused {
                call: "pause",
                reason: "the domain is not running".to_owned(),
            });
        }
        let fails = found.fails.is_some();
        match paused {
            // libvirt keeps the reason of the pause that there is.
            Some(_) if found.paused.is_some() => {}
            Some(_) => found.paused = paused,
            None => found.paused = None,
        }
        if paused.is_none() {
            *inner.resumes.entry(domain).or_default() += 1;
        }
        drop(inner);
        self.emit(Event::Power(domain));
        if paused.is_none() && fails {
            if let Ok(found) = self.lock().domain(domain) {
                found.paused = Some(Pause::IoError);
            }
            self.emit(Event::Power(domain));
        }
        Ok(())
    }

    pub(super) fn keep_definition(&self, xml: String) -> Result<()> {
        let mut inner = self.lock();
        inner.check()?;
        let refused = |reason: String| Error::Refused {
            call: "define",
            reason,
        };
        let parsed = Definition::parse(&xml).and_then(|d| Some((d.uuid()?, d)));
        let Some((uuid, definition)) = parsed else {
            return Err(refused("the XML has no uuid or no name".to_owned()));
        };
        let taken = inner
            .domains
            .iter()
            .any(|(other, d)| (*other == uuid) != (d.name == definition.name));
        if taken {
            return Err(refused(format!(
                "domain {} already exists",
                definition.name
            )));
        }
        let name = definition.name.clone();
        let mark = definition.mark();
        let domain = inner.domains.entry(uuid).or_insert(FakeDomain {
            name,
            mark: None,
            cpu_nanoseconds: 0,
            cpus: Vec::new(),
            size: None,
            xml: String::new(),
            state: State::Inactive(End::Unknown),
            paused: None,
            fails: None,
            files: Vec::new(),
            job: None,
        });
        domain.mark = mark;
        domain.files = first_disk_files(&xml).unwrap_or_default();
        domain.xml = xml;
        Ok(())
    }

    pub(super) async fn begin(
        &self,
        domain: Uuid,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let refused = |reason| Error::Refused {
            call: "start",
            reason,
        };
        tokio::select! {
            turn = self.starts.read() => drop(turn),
            () = given_up => return Err(refused("it was given up before it began".to_owned())),
        }
        let mut inner = self.lock();
        let refusal = inner.refusal.clone();
        let found = inner.domain(domain)?;
        if found.state == State::Active {
            return Err(refused("the domain is already running".to_owned()));
        }
        if let Some(reason) = refusal {
            return Err(refused(reason));
        }
        found.state = State::Active;
        found.size = Layout::read(&found.xml).map(begun);
        drop(inner);
        self.emit(Event::Started(domain));
        self.end_partly(domain).map_or(Ok(()), Err)
    }

    pub(super) fn forget(&self, domain: Uuid) -> Result<()> {
        let mut inner = self.lock();
        inner.check()?;
        let found = inner.domains.get(&domain);
        if found.is_some_and(|found| found.state == State::Active) {
            return Err(Error::Refused {
                call: "undefine",
                reason: "the domain is running".to_owned(),
            });
        }
        inner.domains.remove(&domain);
        inner.late_starts.retain(|late| *late != domain);
        Ok(())
    }

    pub(super) fn request_reboot(&self, domain: Uuid, how: Shutdown) -> Result<()> {
        let mut inner = self.lock();
        inner.domain(domain)?;
        if how == Shutdown::Agent && inner.agent.is_none() {
            return Err(absence());
        }
        inner.reboots.push((domain, Some(how)));
        let obeys = !inner.guest_ignores;
        drop(inner);
        if obeys {
            self.emit(Event::Reset(domain));
        }
        Ok(())
    }

    pub(super) fn request_shutdown(&self, domain: Uuid, how: Shutdown) -> Result<()> {
        let obeys = {
            let mut inner = self.lock();
            inner.check()?;
            inner.shutdowns.push((domain, how));
            let found = inner.domains.get(&domain);
            let active = found.is_some_and(|d| d.state == State::Active);
            let is_paused = found.is_some_and(|d| d.paused.is_some());
            if active && how == Shutdown::Agent && inner.agent.is_none() {
                return Err(absence());
            }
            active && !is_paused && !inner.guest_ignores
        };
        if obeys {
            self.power_off(domain);
        }
        Ok(())
    }

    pub(super) fn write_memory(&self, domain: Uuid, file: PathBuf) -> Result<()> {
        let active = self.lock().domain(domain)?.state == State::Active;
        let refused = |reason: String| Error::Refused {
            call: "save",
            reason,
        };
        if !active {
            return Err(refused("the domain is not running".to_owned()));
        }
        std::fs::write(file, WHOLE).map_err(|e| refused(e.to_string()))?;
        self.end(domain, End::Saved);
        Ok(())
    }

    pub(super) async fn read_memory(
        &self,
        xml: String,
        file: PathBuf,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let refused = |reason: &str| Error::Refused {
            call: "restore",
            reason: reason.to_owned(),
        };
        tokio::select! {
            turn = self.restore_turns.read() => drop(turn),
            () = given_up => return Err(refused("it was given up before it began")),
        }
        if !is_saved_memory(&file) {
            return Err(refused("the file is not saved memory"));
        }
        let uuid = Definition::parse(&xml).and_then(|d| d.uuid());
        let uuid = uuid.unwrap_or_default();
        let mut events = self.events();
        let outlives = self.lock().restores_outlive_kills;
        self.begin(uuid, std::future::pending()).await?;
        self.pause(uuid, Some(Pause::Asked))?;
        let killed =
            async { while events.recv().await != Ok(Event::Stopped(uuid, End::Destroyed)) {} };
        tokio::select! {
            end = self.restores.read() => drop(end),
            () = killed, if !outlives => return Err(refused("the emulator ended")),
        }
        Ok(())
    }
}
