//! Creates the network of a sandbox.
//!
//! Invariant: each step is in the journal, or in the CNI cache, before it is taken.
//! Failure: everything is undone; what cannot be undone stays in the journal. A cancelled future
//! leaves an entry that the next ADD, DEL or start undoes.

use std::time::{Duration, Instant};

use netns::netlink::Kernel;
use netns::{Namespace, bridge_setup};
use service::telemetry::one_line;
use tapmanager::wire::{AddRequest, Network};

use super::serve::Servers;
use super::{Live, Sandboxes, Slot, requirements};
use crate::failure::Failure;
use crate::journal::{Entry, Phase};
use crate::network;

impl Sandboxes {
    /// The network of a sandbox, made if there is none. The same request may be repeated.
    ///
    /// # Errors
    /// When the sandbox has a network from another request, or after the first step that failed.
    pub(crate) async fn add(&self, request: AddRequest) -> Result<Network, Failure> {
        let started = Instant::now();
        let id = request.id.clone();
        let mut slot = self.lock(&id).await?;
        let _turn = self.turns.acquire().await;
        if let Some(live) = slot.as_mut() {
            let whole =
                live.entry.phase == Phase::Up && Namespace::open(&live.entry.netns)?.is_some();
            match &live.entry.network {
                Some(network) if whole && live.entry.request == request => {
                    return Ok(network.clone());
                }
                Some(_) if whole => {
                    let words = format!("sandbox {id} has a network that another request made");
                    return Err(Failure::Invalid(words));
                }
                _ => {
                    tracing::info!(sandbox = id, phase = ?live.entry.phase, "leftover network replaced");
                    self.take_down(&mut slot).await?;
                }
            }
        }
        requirements().map_err(Failure::NotReady)?;
        let config = self.runtime.network().await.map_err(Failure::NoNetwork)?;
        if let Some(words) = network::obstacle(config.plugins().iter().map(|p| p.kind())) {
            return Err(Failure::NotReady(words));
        }
        let mut entry = Entry::new(request, self.netns_path(&id));
        entry.boot.clone_from(&self.boot);
        network::attachment(&entry.request, &entry.netns)
            .validate()
            .map_err(|e| Failure::Invalid(one_line(&e)))?;
        network::macs(&entry.request).map_err(Failure::Invalid)?;
        self.journal.put(&entry).await?;
        *slot = Some(Live::closed(entry));
        faultpoint::point("tap.add.journaled");
        match self.bring_up(&config, &mut slot).await {
            Ok((network, plugins)) => {
                let nics = network.nics.len();
                let took = started.elapsed();
                let address = network.ips().next();
                tracing::info!(
                    sandbox = id,
                    network = network.cni_network,
                    nics,
                    ?address,
                    ?took,
                    ?plugins,
                    "network added"
                );
                Ok(network)
            }
            Err(failure) => {
                tracing::warn!(sandbox = id, error = one_line(&failure), took = ?started.elapsed(),
                    "network not added");
                if let Err(undo) = self.take_down(&mut slot).await {
                    tracing::warn!(
                        sandbox = id,
                        error = one_line(&undo),
                        "leftover network not removed"
                    );
                }
                Err(failure)
            }
        }
    }

    /// Runs the plugins, with as much of the addresses that the guest is to have as they take.
    async fn attach(
        &self,
        config: &cni::NetworkConfig,
        entry: &Entry,
    ) -> Result<cni::AddResult, Failure> {
        let mut attempts = network::attachments(&entry.request, &entry.netns).into_iter();
        let mut attempt = attempts.next();
        loop {
            let Some(attachment) = attempt else {
                return Err(Failure::Changed(
                    "nothing to ask the plugins for".to_owned(),
                ));
            };
            attempt = attempts.next();
            match self.runtime.add(config, &attachment).await {
                Err(error) if attempt.is_some() && error.kind() == cni::ErrorKind::Plugin => {
                    let sandbox = &entry.request.id;
                    tracing::info!(
                        sandbox,
                        error = one_line(&error),
                        "CNI ADD repeated without the known address"
                    );
                }
                outcome => return outcome.map_err(Failure::Attach),
            }
        }
    }

    /// The network, and how long plugins took to make their part of it.
    async fn bring_up(
        &self,
        config: &cni::NetworkConfig,
        slot: &mut Slot,
    ) -> Result<(Network, Duration), Failure> {
        let Some(Live {
            entry,
            ns: open,
            servers,
        }) = slot.as_mut()
        else {
            return Err(Failure::Changed("it was removed meanwhile".to_owned()));
        };
        let name = format!("vmlet-{}", entry.request.id);
        // A crash may have left the file without the mount.
        Namespace::delete(&entry.netns).await?;
        let ns = Namespace::create(&self.netns_dir, &name).await?;
        *open = Some(ns.clone());
        faultpoint::point("tap.add.netns");
        let kernel = Kernel::open(&ns).await?;
        bridge_setup::prepare(&kernel).await?;
        let attaching = self.attaching.read().await;
        let result = self.attach(config, entry).await?;
        drop(attaching);
        faultpoint::point("tap.add.cni");
        entry.links = bridge_setup::survey(&kernel).await?;
        let macs = network::macs(&entry.request).map_err(Failure::Invalid)?;
        for link in network::adopt(&mut entry.links, &macs) {
            if entry.request.known_nics.is_empty() {
                return Err(Failure::Network(network::Error::OwnMac(link)));
            }
            let sandbox = &entry.request.id;
            tracing::warn!(
                sandbox,
                link,
                "address of a resumed guest cannot be kept on this link"
            );
        }
        let omitted = bridge_setup::omitted(&kernel, &entry.links).await?;
        for part in &omitted {
            let sandbox = &entry.request.id;
            tracing::warn!(sandbox, part, "part of a network does not reach the guest");
        }
        let mut network = network::describe(
            &entry.request,
            &entry.netns,
            config.name(),
            &entry.links,
            &result,
        )
        .map_err(Failure::Network)?;
        network.omitted = omitted;
        for repair in network::repairs(&entry.links, &result.parsed, &network) {
            let sandbox = &entry.request.id;
            tracing::info!(sandbox, repair, "CNI result repaired");
        }
        self.journal.put(entry).await?;
        let guards = network::guards(&entry.request, &network);
        bridge_setup::apply(&kernel, &entry.links, &guards).await?;
        faultpoint::point("tap.add.links");
        entry.network = Some(network.clone());
        entry.phase = Phase::Up;
        self.journal.put(entry).await?;
        faultpoint::point("tap.add.up");
        *servers = Some(Servers::start(&ns, &network, &entry.request.hostname, &self.node).await?);
        Ok((network, result.took))
    }
}
