//! Installing a Debian package so that it starts nothing.
//!
//! The rule kept here: the machine is left as it was but for the package itself; the switches that
//! keep daemons down are there only while apt runs. Anything but Debian and its kin gets an error
//! that says what to install by hand.

use std::process::Command;

use anyhow::{Result, bail};

use super::process;
use crate::shell;

/// Runs apt with daemons held down, and puts everything back whatever happens.
const SCRIPT: &str = include_str!("apt_install.sh");

/// Installs `package` with its dependencies.
pub(crate) fn install(package: &str) -> Result<()> {
    if shell::which("apt-get").is_none() {
        bail!(
            "there is no apt-get here; install {package} by hand, or point the tests at a server"
        );
    }
    eprintln!("installing Debian's {package} with apt-get");
    let mut command = if process::is_root()? {
        Command::new("sh")
    } else {
        // `-n`: where sudo would ask for a password this fails at once instead of hanging.
        let mut command = Command::new("sudo");
        command.args(["-n", "sh"]);
        command
    };
    shell::capture(command.args(["-eu", "-c", SCRIPT, "apt_install.sh", package]))
        .map(drop)
        .map_err(|error| error.context(format!("cannot install {package}; install it by hand")))
}
