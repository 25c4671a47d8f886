//! The steps between fork and exec, for their errors.
//!
//! Invariant: a step and the kernel's error are one number, which crosses the fork without an
//! allocation.
//! Failure: none.

use std::fmt;
use std::io;

use nix::errno::Errno;

/// What the kernel is requested to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    Group = 1,
    OomScore,
    Namespace,
    Private,
    Volume,
    Resolver,
    Mask,
    ReadOnly,
    Root,
    MakeDirectory,
    Directory,
    Bounding,
    User,
    Capabilities,
    Ambient,
    NoNewPrivileges,
    Filter,
}

const STEPS: [Step; 17] = [
    Step::Group,
    Step::OomScore,
    Step::Namespace,
    Step::Private,
    Step::Volume,
    Step::Resolver,
    Step::Mask,
    Step::ReadOnly,
    Step::Root,
    Step::MakeDirectory,
    Step::Directory,
    Step::Bounding,
    Step::User,
    Step::Capabilities,
    Step::Ambient,
    Step::NoNewPrivileges,
    Step::Filter,
];

impl Step {
    /// An error of this step as one number.
    pub(crate) fn failed(self) -> impl FnOnce(Errno) -> io::Error {
        move |errno| io::Error::from_raw_os_error((self as i32) << 16 | errno as i32)
    }

    /// The step that failed, and why; `None` for an error of something else.
    pub(crate) fn from_error(error: &io::Error) -> Option<(Self, Errno)> {
        let number = error.raw_os_error()?;
        let mut steps = STEPS.into_iter();
        let step = steps.find(|step| *step as i32 == number >> 16)?;
        Some((step, Errno::from_raw(number & 0xffff)))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Group => "put the command into its cgroup",
            Self::OomScore => "set oom_score_adj",
            Self::Namespace => "make a mount namespace",
            Self::Private => "make the mounts private",
            Self::Volume => "mount a volume of the pod",
            Self::Resolver => "mount /etc/resolv.conf",
            Self::Mask => "mask a path",
            Self::ReadOnly => "make a path read-only",
            Self::Root => "make the root file system read-only",
            Self::MakeDirectory => "make the working directory",
            Self::Directory => "enter the working directory",
            Self::Bounding => "reduce the bounding set of capabilities",
            Self::User => "change the user",
            Self::Capabilities => "set the capabilities",
            Self::Ambient => "set the ambient capabilities",
            Self::NoNewPrivileges => "forbid new privileges",
            Self::Filter => "install the seccomp filter",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_and_its_error_cross_a_fork_as_one_number() {
        for step in STEPS {
            let error = step.failed()(Errno::EPERM);
            assert_eq!(Step::from_error(&error), Some((step, Errno::EPERM)));
        }
        assert_eq!(Step::from_error(&io::Error::from_raw_os_error(2)), None);
        assert_eq!(Step::from_error(&io::Error::other("x")), None);
    }
}
