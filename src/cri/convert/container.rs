//! Conversions of containers.
//!
//! Invariant: mounts and resources are echoed as they were given, but for paths in the container, which
//! are cleaned; whether a machine can use them or not.
//! Failure: [`Invalid`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cri_proto::v1;
use cri_proto::v1::MountPropagation as Propagation;

use super::{Invalid, Result, check, image, sandbox, unused};
use crate::images::Image;
use crate::vm::state::Phase;
use crate::vm::{
    Container, ContainerConfig, ContainerMetadata, Device, Environment, LinuxResources, Mount,
    ShareUser, Unused,
};

const MOST_MOUNTS: usize = 1024;
const MOST_DEVICES: usize = 256;
const MOST_HUGEPAGE_SIZES: usize = 64;

/// Maximum grace period; a longer one (over ten years) has no use.
pub(super) const LONGEST_GRACE: u64 = 10 * 365 * 86_400;

/// The order of the containers of a pod. With evented PLEG kubelet takes the first container of a
/// name as the current one, and restarts it when it has exited.
pub(in crate::cri) fn newest_first(containers: &mut [Arc<Container>]) {
    containers.sort_by_key(|container| std::cmp::Reverse(container.created_at));
}

/// What a client requests.
pub(in crate::cri) fn config(config: Option<v1::ContainerConfig>) -> Result<ContainerConfig> {
    let config = config.ok_or_else(|| Invalid::missing("config"))?;
    let metadata = config
        .metadata
        .ok_or_else(|| Invalid::missing("config.metadata"))?;
    let linux = config.linux.unwrap_or_default();
    let security_context = linux.security_context.unwrap_or_default();
    let unused_security = unused::security(&security_context);
    let share_user = security(security_context)?;
    let has_command = [&config.command, &config.args]
        .iter()
        .any(|words| !words.is_empty());
    let variables = config.envs.iter();
    let variables = variables.map(|variable| (variable.key.clone(), variable.value.clone()));
    Ok(ContainerConfig {
        share_user,
        environment: Environment(variables.collect()),
        unused: Unused {
            command: has_command || !config.working_dir.is_empty(),
            variables: unused::variables(config.envs),
            cdi_devices: unused::cdi_devices(config.cdi_devices),
            security: unused_security,
        },
        metadata: ContainerMetadata {
            name: check::name("config.metadata.name", metadata.name)?,
            attempt: metadata.attempt,
        },
        image: image::spec("config.image", config.image)?,
        labels: check::map("config.labels", config.labels)?,
        annotations: check::map("config.annotations", config.annotations)?,
        mounts: mounts(config.mounts)?,
        devices: check::list("config.devices", config.devices, MOST_DEVICES, device)?,
        log_path: check::relative_path("config.log_path", config.log_path)?,
        resources: resources(
            "config.linux.resources",
            linux.resources.unwrap_or_default(),
        )?,
        stop_signal: check::known::<v1::Signal>("config.stop_signal", config.stop_signal)?.into(),
    })
}

/// The grace period of a stop; a negative one is none.
pub(in crate::cri) fn grace(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0).min(LONGEST_GRACE))
}

/// The identity of the container, which the processes that serve its volumes have.
fn security(context: v1::LinuxContainerSecurityContext) -> Result<ShareUser> {
    const FIELD: &str = "config.linux.security_context";
    let user_given = context.run_as_user.is_some() || !context.run_as_username.is_empty();
    if context.run_as_group.is_some() && !user_given {
        let reason = "a group needs run_as_user or run_as_username";
        return Err(Invalid::new(format!("{FIELD}.run_as_group"), reason));
    }
    let options = context.namespace_options.unwrap_or_default();
    sandbox::namespaces(&format!("{FIELD}.namespace_options"), options)?;
    let id = |name: &str, value: i64| {
        let id = u32::try_from(value).ok().filter(|id| *id < u32::MAX);
        id.ok_or_else(|| Invalid::new(format!("{FIELD}.{name}"), "it is no user or group ID"))
    };
    let user = context.run_as_user;
    let group = context.run_as_group;
    let groups = context.supplemental_groups.into_iter();
    Ok(ShareUser {
        uid: user.map(|user| id("run_as_user", user.value)).transpose()?,
        gid: group
            .map(|group| id("run_as_group", group.value))
            .transpose()?,
        groups: groups
            .map(|group| id("supplemental_groups", group))
            .collect::<Result<_>>()?,
    })
}

/// Refuses two spellings of one path: kubelet compares the texts, and one of the volumes would be
/// hidden behind the other. The same text twice is kubelet's own, for a file that each container has.
fn mounts(given: Vec<v1::Mount>) -> Result<Vec<Mount>> {
    const FIELD: &str = "config.mounts";
    let texts: Vec<_> = given.iter().map(|one| one.container_path.clone()).collect();
    let mounts = check::list(FIELD, given, MOST_MOUNTS, mount)?;
    let mut spellings = HashMap::with_capacity(mounts.len());
    for (number, (mount, text)) in mounts.iter().zip(&texts).enumerate() {
        let earlier = *spellings.entry(&mount.container_path).or_insert(text);
        if earlier != text {
            let reason = format!(
                "something else is mounted at {earlier}, and {text} is the same path: mount one of \
                 them elsewhere"
            );
            return Err(Invalid::new(
                format!("{FIELD}[{number}].container_path"),
                reason,
            ));
        }
    }
    Ok(mounts)
}

fn mount(field: &str, mount: v1::Mount) -> Result<Mount> {
    let of = |name| format!("{field}.{name}");
    if mount.image.is_some() || !mount.image_sub_path.is_empty() {
        let reason = "images cannot be mounted into a virtual machine";
        return Err(Invalid::new(of("image"), reason));
    }
    if mount.container_path.is_empty() {
        return Err(Invalid::missing(&of("container_path")));
    }
    let propagation = check::known::<Propagation>(&of("propagation"), mount.propagation)?;
    if mount.recursive_read_only
        && !(mount.readonly && propagation == Propagation::PropagationPrivate)
    {
        let reason = "it needs readonly and private propagation";
        return Err(Invalid::new(of("recursive_read_only"), reason));
    }
    Ok(Mount {
        container_path: check::clean_path(&of("container_path"), mount.container_path)?,
        host_path: check::absolute_path(&of("host_path"), mount.host_path)?,
        readonly: mount.readonly,
        selinux_relabel: mount.selinux_relabel,
        propagation: propagation.into(),
        recursive_read_only: mount.recursive_read_only,
    })
}

fn device(field: &str, device: v1::Device) -> Result<Device> {
    let of = |name| format!("{field}.{name}");
    for (name, path) in [
        ("container_path", &device.container_path),
        ("host_path", &device.host_path),
    ] {
        if path.is_empty() {
            return Err(Invalid::missing(&of(name)));
        }
    }
    let inside = check::absolute_path(&of("container_path"), device.container_path)?;
    Ok(Device {
        container_path: check::clean_path(&of("container_path"), inside)?,
        host_path: check::absolute_path(&of("host_path"), device.host_path)?,
        permissions: check::text(&of("permissions"), device.permissions)?,
    })
}

/// The resources at `field` of a request.
pub(in crate::cri) fn resources(
    field: &str,
    resources: v1::LinuxContainerResources,
) -> Result<LinuxResources> {
    let of = |name| format!("{field}.{name}");
    let pages = |field: &str, limit: v1::HugepageLimit| {
        Ok((check::text(field, limit.page_size)?, limit.limit))
    };
    Ok(LinuxResources {
        cpu_period: resources.cpu_period,
        cpu_quota: resources.cpu_quota,
        cpu_shares: resources.cpu_shares,
        memory_limit_in_bytes: resources.memory_limit_in_bytes,
        oom_score_adj: resources.oom_score_adj,
        cpuset_cpus: check::text(&of("cpuset_cpus"), resources.cpuset_cpus)?,
        cpuset_mems: check::text(&of("cpuset_mems"), resources.cpuset_mems)?,
        hugepage_limits: check::list(
            &of("hugepage_limits"),
            resources.hugepage_limits,
            MOST_HUGEPAGE_SIZES,
            pages,
        )?,
        unified: check::map(&of("unified"), resources.unified)?,
        memory_swap_limit_in_bytes: resources.memory_swap_limit_in_bytes,
    })
}

/// The CRI state of a phase.
pub(in crate::cri) const fn state(phase: Phase) -> v1::ContainerState {
    match phase {
        Phase::Creating | Phase::Created | Phase::Starting => v1::ContainerState::ContainerCreated,
        Phase::Running | Phase::Stopping => v1::ContainerState::ContainerRunning,
        Phase::Exited | Phase::Removing => v1::ContainerState::ContainerExited,
    }
}

/// As an item of a list; `image` is the image that the container is based on, if it is still here.
pub(in crate::cri) fn item(container: &Container, image: Option<&Image>) -> v1::Container {
    let config = &container.spec.config;
    v1::Container {
        id: container.id.to_string(),
        pod_sandbox_id: container.sandbox.to_string(),
        metadata: Some(metadata(&config.metadata)),
        image: Some(image::of_container(config, image)),
        image_ref: image::reference(&container.spec.image_digest, image),
        state: state(container.phase).into(),
        created_at: container.created_at,
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        image_id: container.spec.image_digest.clone(),
    }
}

/// The status of a container, with every field that the CRI has for it and Vmlet knows.
pub(in crate::cri) fn status(container: &Container, image: Option<&Image>) -> v1::ContainerStatus {
    let config = &container.spec.config;
    let exit = container.exit.as_ref();
    v1::ContainerStatus {
        id: container.id.to_string(),
        metadata: Some(metadata(&config.metadata)),
        state: state(container.phase).into(),
        created_at: container.created_at,
        started_at: container.started_at,
        finished_at: container.finished_at,
        exit_code: exit.map_or(0, |exit| exit.code),
        image: Some(image::of_container(config, image)),
        image_ref: image::reference(&container.spec.image_digest, image),
        reason: exit.map_or_else(String::new, |exit| exit.reason.clone()),
        message: exit.map_or_else(String::new, |exit| exit.message.clone()),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        mounts: config.mounts.iter().map(wire_mount).collect(),
        log_path: container.spec.log_path.to_string_lossy().into_owned(),
        resources: Some(v1::ContainerResources {
            linux: Some(wire_resources(container.resources())),
            windows: None,
        }),
        image_id: container.spec.image_digest.clone(),
        // The first process of a guest is its kernel's init.
        user: Some(v1::ContainerUser {
            linux: Some(v1::LinuxContainerUser::default()),
        }),
        stop_signal: config.stop_signal,
    }
}

pub(super) fn metadata(metadata: &ContainerMetadata) -> v1::ContainerMetadata {
    v1::ContainerMetadata {
        name: metadata.name.clone(),
        attempt: metadata.attempt,
    }
}

fn wire_mount(mount: &Mount) -> v1::Mount {
    v1::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.readonly,
        selinux_relabel: mount.selinux_relabel,
        propagation: mount.propagation,
        recursive_read_only: mount.recursive_read_only,
        ..v1::Mount::default()
    }
}

fn wire_resources(resources: &LinuxResources) -> v1::LinuxContainerResources {
    let limits = resources.hugepage_limits.iter();
    v1::LinuxContainerResources {
        cpu_period: resources.cpu_period,
        cpu_quota: resources.cpu_quota,
        cpu_shares: resources.cpu_shares,
        memory_limit_in_bytes: resources.memory_limit_in_bytes,
        oom_score_adj: resources.oom_score_adj,
        cpuset_cpus: resources.cpuset_cpus.clone(),
        cpuset_mems: resources.cpuset_mems.clone(),
        hugepage_limits: limits
            .map(|(page_size, limit)| v1::HugepageLimit {
                page_size: page_size.clone(),
                limit: *limit,
            })
            .collect(),
        unified: resources.unified.clone(),
        memory_swap_limit_in_bytes: resources.memory_swap_limit_in_bytes,
    }
}
