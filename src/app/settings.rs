//! Converts the configuration to the settings of each service.
//!
//! Invariant: the only place that knows both the configuration's names and the services' settings.
//! Failure: [`UnknownUser`] when the configured user of QEMU does not exist on this node.

use std::path::{Path, PathBuf};

use crate::backup::{BucketSettings, BucketStyle, Location, Targets};
use crate::config::{self, Config};
use crate::disk::Disks;
use crate::disk::qemu_img::Budget;
use crate::metadata::{self, Db};
use crate::space::Space;
use crate::vm::accelerator;
use crate::{images, node, vm};

/// QEMU's user does not exist: the libvirt set-up of the node makes it.
#[derive(Debug, thiserror::Error)]
#[error(
    "user {name:?} (vm.user) does not exist on this node: install libvirt, or name its QEMU user"
)]
pub struct UnknownUser {
    name: String,
}

/// The settings of the image store.
pub(super) fn images(config: &Config, readers: u32, space: Space) -> images::Settings {
    let given = &config.images;
    images::Settings {
        protocol: protocol(given.protocol),
        translations: given.translations.iter().map(translation).collect(),
        translations_dir: given.translations_dir.to_path_buf(),
        registries: given.registries.clone(),
        registries_dir: given.registries_dir.to_path_buf(),
        max_download_bytes: given.max_download.bytes(),
        max_virtual_bytes: given.max_virtual_size.bytes(),
        convert: given.convert.iter().map(convertible).collect(),
        // Less would never let a file of the largest size in.
        max_partial_bytes: given.max_partial.bytes().max(given.max_download.bytes()),
        space,
        min_rate: given.min_rate.bytes(),
        stall_timeout: given.stall_timeout.get(),
        collection: collection(given),
        allowed_addresses: given
            .allowed_addresses
            .iter()
            .map(|range| range.get())
            .collect(),
        private_addresses: match given.private_addresses {
            config::PrivateAddresses::Allow => images::Private::Allow,
            config::PrivateAddresses::Refuse => images::Private::Refuse,
        },
        raw_data: match given.raw_data {
            config::RawData::Allow => images::RawData::Allow,
            config::RawData::Refuse => images::RawData::Refuse,
        },
        ca_file: (*given.ca_file).clone(),
        readers: Some(readers),
        boot_id_file: config.boot_id_file.to_path_buf(),
        ..images::Settings::new(config.state_dir.join("images"))
    }
}

const fn convertible(given: &config::ConvertedFormat) -> images::Convertible {
    match given {
        config::ConvertedFormat::Vmdk => images::Convertible::Vmdk,
        config::ConvertedFormat::Vhdx => images::Convertible::Vhdx,
    }
}

fn collection(given: &config::Images) -> images::Collection {
    let high = given.high_water_percent;
    let low = given.low_water_percent;
    let age = given.max_unused_age;
    images::Collection {
        marks: (high > 0).then_some(images::Marks { high, low }),
        max_unused: (!age.is_zero()).then_some(age.get()),
    }
}

fn translation(given: &config::Translation) -> images::Translation {
    images::Translation {
        pattern: match &given.pattern {
            config::Pattern::Name(name) => images::Pattern::Exact(name.clone()),
            config::Pattern::Prefix(prefix) => images::Pattern::Prefix(prefix.clone()),
            config::Pattern::Regexp(text) => images::Pattern::Expression(text.clone()),
        },
        url: given.url.clone(),
    }
}

/// The budget for the disks of machines.
pub(super) async fn budget(config: &Config, space: Space, db: Db) -> metadata::Result<Budget> {
    let roots = vec![
        vm::Paths::new(&config.state_dir).pods(),
        Disks::directory_of(&config.state_dir),
    ];
    let most = config.vm.disk_budget.map(config::Size::bytes);
    Budget::open(most, space, db, roots).await
}

/// The limits for the tasks of the node API.
pub(super) fn limits(config: &Config) -> node::Limits {
    node::Limits {
        provisions: *config.node.parallel_provisions,
        saves: libvirt(config).memory_calls(),
        promotions: *config.node.parallel_promotions,
        promotion_rate: config.node.promotion_rate.bytes(),
    }
}

/// Where backups are, as this process reaches it.
pub(super) fn targets(config: &Config) -> Targets {
    let all = config.backup.targets.iter().filter_map(|target| {
        let location = match target.place() {
            config::BackupPlace::Directory(path) => Location::Directory(on_node(config, path)),
            config::BackupPlace::Bucket(given) => {
                Location::Bucket(Box::new(bucket(config, given)?))
            }
        };
        Some((target.name().to_owned(), location))
    });
    Targets::new(all.collect())
}

fn bucket(config: &Config, given: &config::BackupBucket) -> Option<BucketSettings> {
    let mut settings = BucketSettings::new(
        // It was checked when it was parsed.
        given.endpoint().ok()?,
        given.name(),
        on_node(config, given.credentials()),
    );
    if !given.prefix().is_empty() {
        settings.prefix = format!("{}/", given.prefix());
    }
    settings.region = given.region().to_owned();
    settings.style = match given.style() {
        config::BucketStyle::Path => BucketStyle::Path,
        config::BucketStyle::Host => BucketStyle::Host,
    };
    settings.ca = given.ca().map(|file| on_node(config, file));
    Some(settings)
}

/// A path of the node, as this process reaches it.
fn on_node(config: &Config, path: &Path) -> PathBuf {
    let below = path.strip_prefix("/").unwrap_or(path);
    config.shares.host_root.join(below)
}

/// The settings of the connection to libvirt.
pub(super) fn libvirt(config: &Config) -> libvirt::Settings {
    libvirt::Settings {
        call_deadline: config.libvirt.call_timeout.get(),
        start_deadline: config.libvirt.start_timeout.get(),
        turn_deadline: config.libvirt.start_timeout.get() * 2,
        parallel: *config.libvirt.parallel_calls,
    }
}

/// What applies to machines whose pods specify nothing.
pub(super) fn defaults(config: &Config) -> podspec::Defaults {
    podspec::Defaults {
        vcpus: *config.vm.default_vcpus,
        memory: *config.vm.default_memory,
        cpu_model: match config.vm.cpu_model {
            config::CpuModel::HostPassthrough => podspec::CpuModel::Default,
            config::CpuModel::HostModel => podspec::CpuModel::HostModel,
        },
    }
}

/// Which accelerator machines use.
pub(super) const fn accelerator(config: &Config) -> accelerator::Setting {
    match config.vm.accelerator {
        config::Accelerator::Auto => accelerator::Setting::Auto,
        config::Accelerator::Kvm => accelerator::Setting::Kvm,
        config::Accelerator::Tcg => accelerator::Setting::Tcg,
    }
}

/// What the image store uses from when it changes.
pub(super) fn adjustable_images(config: &Config) -> images::Adjustable {
    images::Adjustable {
        protocol: protocol(config.images.protocol),
        max_download_bytes: config.images.max_download.bytes(),
        max_virtual_bytes: config.images.max_virtual_size.bytes(),
    }
}

const fn protocol(given: config::Protocol) -> images::Protocol {
    match given {
        config::Protocol::Http => images::Protocol::Http,
        config::Protocol::Https => images::Protocol::Https,
    }
}

/// The settings of the service of machines.
pub(super) fn machines(config: &Config, installation: String) -> Result<vm::Settings, UnknownUser> {
    let name = &*config.vm.user;
    let user = nix::unistd::User::from_name(name).ok().flatten();
    let user = user.ok_or_else(|| UnknownUser {
        name: name.to_owned(),
    })?;
    Ok(vm::Settings {
        state_dir: config.state_dir.to_path_buf(),
        accelerator: accelerator(config),
        emulator: config.vm.emulator.to_path_buf(),
        wrapper: config.vm.wrapper.to_path_buf(),
        guest_agent: config.vm.guest_agent.to_path_buf(),
        firmware: config.vm.firmware.to_path_buf(),
        handoff_socket: config.network.handoff_socket.to_path_buf(),
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
        uids: vm::UidRange {
            first: config.vm.first_uid,
            count: config.vm.uid_count,
        },
        landlock: match config.vm.landlock {
            config::Landlock::Off => vm::Landlock::Off,
            config::Landlock::On => vm::Landlock::On,
            config::Landlock::Require => vm::Landlock::Required,
        },
        qcow2_file_disks: config.vm.qcow2_file_disks,
        shares: vm::ShareSettings {
            program: config.shares.program.to_path_buf(),
            root: config.shares.host_root.to_path_buf(),
            user: vm::Owner {
                uid: config.shares.uid,
                gid: config.shares.gid,
            },
        },
        boot_id_file: config.boot_id_file.to_path_buf(),
        cgroup_root: config.cri.cgroup_root.to_path_buf(),
        installation,
        defaults: defaults(config),
        unknown_image: match config.images.unknown_id {
            config::UnknownId::Pull => vm::UnknownImage::Pull,
            config::UnknownId::Refuse => vm::UnknownImage::Refuse,
        },
        memory_overhead: config.vm.memory_overhead.bytes(),
        unsupported: match config.vm.unsupported {
            config::Unsupported::Refuse => vm::Unsupported::Refuse,
            config::Unsupported::Warn => vm::Unsupported::Warn,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tapmanager::wire::TOKEN_LIFE;

    use super::*;

    #[test]
    fn a_token_outlives_the_longest_start() {
        let limits = libvirt(&Config::default());
        let define = limits.turn_deadline + limits.call_deadline;
        let start = limits.turn_deadline + limits.start_deadline;
        // A restore waits for an hour, and takes one.
        let restore = Duration::from_secs(2 * 60 * 60);
        assert!(TOKEN_LIFE > define + start.max(restore));
    }
}
