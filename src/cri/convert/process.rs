//! What a client requests of a container that is a process.
//!
//! Invariant: what `vmlet-guest` cannot apply is refused, with the field.
//! Failure: [`Invalid`]; values of environment variables are in no message.

mod capabilities;
mod signal;

use cri_proto::v1;
use cri_proto::v1::security_profile::ProfileType;

use super::{Invalid, Result, exec};
use crate::guest::{Confinement, Start, User, View};
use crate::vm::process::{Process, Profile};

const SECURITY: &str = "config.linux.security_context";
/// Size of all environment variables together, in bytes; Linux's own limit of one is half of it.
const LARGEST_ENVIRONMENT: usize = 128 << 10;
/// The size of a terminal until a client reports one.
const FIRST_SIZE: guestapi::Terminal = guestapi::Terminal {
    rows: 24,
    columns: 80,
};

/// The process of a container; one without a command is the machine.
pub(in crate::cri) fn process(config: &v1::ContainerConfig) -> Result<Option<Process>> {
    let words = config.command.iter().chain(&config.args);
    let command: Vec<_> = words.cloned().collect();
    if command.is_empty() {
        return Ok(None);
    }
    let command = exec::command(command).map_err(|_| {
        let reason = "it needs a program, at most 256 KiB, and no NUL";
        Invalid::new("config.command", reason)
    })?;
    let linux = config.linux.clone().unwrap_or_default();
    let security = linux.security_context.unwrap_or_default();
    let start = Start {
        command,
        environment: environment(&config.envs)?,
        directory: directory(&config.working_dir)?,
        input: config.stdin,
        terminal: config.tty.then_some(FIRST_SIZE),
        user: user(&security)?,
        confinement: confinement(&security)?,
        view: view(&security)?,
        ..Start::default()
    };
    let confinement = start.confinement.as_ref().filter(|_| !security.privileged);
    let seccomp = match confinement {
        Some(confinement) => (seccomp(&security)?, confinement.capabilities.clone()),
        // Profiles have no effect on a privileged container.
        None => Default::default(),
    };
    Ok(Some(Process {
        start,
        seccomp,
        stdin_once: config.stdin_once,
        stop_signal: signal::number(config.stop_signal)?,
    }))
}

fn environment(variables: &[v1::KeyValue]) -> Result<Vec<String>> {
    const FIELD: &str = "config.envs";
    let size: usize = variables
        .iter()
        .map(|v| v.key.len() + v.value.len() + 2)
        .sum();
    if size > LARGEST_ENVIRONMENT {
        let reason = format!("{size} bytes are more than {LARGEST_ENVIRONMENT}");
        return Err(Invalid::new(FIELD, reason));
    }
    let variable = |variable: &v1::KeyValue| {
        let name = &variable.key;
        let value = std::str::from_utf8(&variable.value)
            .map_err(|_| Invalid::new(FIELD, "a value is not UTF-8"))?;
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            let reason = "a name is empty or has a =, or there is a NUL";
            return Err(Invalid::new(FIELD, reason));
        }
        Ok(format!("{name}={value}"))
    };
    variables.iter().map(variable).collect()
}

/// Without one, the root directory, as in a container.
fn directory(given: &str) -> Result<String> {
    match given {
        "" => Ok("/".to_owned()),
        given => super::check::absolute_path("config.working_dir", given.to_owned()),
    }
}

fn user(security: &v1::LinuxContainerSecurityContext) -> Result<Option<User>> {
    let number = |name: &str, value: i64| {
        let refused = || Invalid::new(format!("{SECURITY}.{name}"), "it is no id of Linux");
        u32::try_from(value).map_err(|_| refused())
    };
    if security.supplemental_groups_policy != i32::from(v1::SupplementalGroupsPolicy::Merge) {
        let field = format!("{SECURITY}.supplemental_groups_policy");
        let reason = "only Merge is available: the guest adds the groups of its group file";
        return Err(Invalid::new(field, reason));
    }
    let uid = security.run_as_user.as_ref();
    let uid = uid
        .map(|uid| number("run_as_user", uid.value))
        .transpose()?;
    let gid = security.run_as_group.as_ref();
    let gid = gid
        .map(|gid| number("run_as_group", gid.value))
        .transpose()?;
    let groups = security.supplemental_groups.iter();
    let groups = groups
        .map(|gid| number("supplemental_groups", *gid))
        .collect::<Result<Vec<_>>>()?;
    let name = security.run_as_username.clone();
    let is_root = uid.is_none() && name.is_empty() && groups.is_empty();
    Ok((!is_root).then_some(User {
        name: if uid.is_some() { String::new() } else { name },
        uid: uid.unwrap_or(0),
        gid,
        groups,
    }))
}

fn confinement(security: &v1::LinuxContainerSecurityContext) -> Result<Option<Confinement>> {
    let selinux = security.selinux_options.as_ref();
    if selinux.is_some_and(|options| *options != v1::SeLinuxOption::default()) {
        let field = format!("{SECURITY}.selinux_options");
        return Err(Invalid::new(field, "the guest has no labels of the node"));
    }
    if security.privileged {
        return Ok(security.readonly_rootfs.then(|| Confinement {
            capabilities: (0..u64::BITS).collect(),
            read_only_root: true,
            ..Confinement::default()
        }));
    }
    apparmor(security.apparmor.as_ref())?;
    let given = security.capabilities.clone().unwrap_or_default();
    let (capabilities, ambient) = capabilities::sets(&given)?;
    Ok(Some(Confinement {
        capabilities,
        ambient,
        no_new_privileges: security.no_new_privs,
        read_only_root: security.readonly_rootfs,
        ..Confinement::default()
    }))
}

/// Paths that the process finds masked or read-only.
fn view(security: &v1::LinuxContainerSecurityContext) -> Result<Option<View>> {
    let paths = |name: &str, paths: &[String]| {
        let field = format!("{SECURITY}.{name}");
        if paths.len() > guestapi::SETTINGS {
            let reason = format!("{} paths are more than {}", paths.len(), guestapi::SETTINGS);
            return Err(Invalid::new(field, reason));
        }
        let checked = paths.iter().cloned().map(|path| {
            let path = super::check::absolute_path(&field, path)?;
            match path.as_str() {
                "" | "/" => Err(Invalid::new(
                    &*field,
                    "it is no path below the root directory",
                )),
                _ => Ok(path),
            }
        });
        checked.collect::<Result<Vec<_>>>()
    };
    let view = View {
        masked: paths("masked_paths", &security.masked_paths)?,
        read_only: paths("readonly_paths", &security.readonly_paths)?,
        ..View::default()
    };
    // A privileged container has none.
    Ok((!security.privileged && view != View::default()).then_some(view))
}

fn seccomp(security: &v1::LinuxContainerSecurityContext) -> Result<Profile> {
    let Some(profile) = &security.seccomp else {
        return Ok(Profile::Unconfined);
    };
    Ok(match profile.profile_type() {
        ProfileType::Unconfined => Profile::Unconfined,
        ProfileType::RuntimeDefault => Profile::RuntimeDefault,
        ProfileType::Localhost => {
            let field = format!("{SECURITY}.seccomp.localhost_ref");
            let path = profile.localhost_ref.trim_start_matches("localhost/");
            let path = super::check::absolute_path(&field, path.to_owned())?;
            if path.is_empty() {
                return Err(Invalid::new(field, "a path of the node is required"));
            }
            Profile::Localhost(path.into())
        }
    })
}

/// The profiles of the node's kernel are not in that of the guest.
fn apparmor(profile: Option<&v1::SecurityProfile>) -> Result<()> {
    match profile.map(v1::SecurityProfile::profile_type) {
        Some(ProfileType::Localhost) => {
            let reason = "profiles of the node are not available in a guest: omit it, or choose \
                          RuntimeDefault or Unconfined";
            Err(Invalid::new(format!("{SECURITY}.apparmor"), reason))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
