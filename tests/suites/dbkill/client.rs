//! A process that takes SQL on its standard input and answers on its standard output.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use sapwood_tests::process;

/// The process; it ends with this.
pub(crate) struct Client {
    child: Child,
    errors: File,
}

impl Client {
    /// Starts it.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn start(command: &mut Command) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{command:?}: {error}");
        let errors = tempfile::tempfile().map_err(failed)?;
        let copy = errors.try_clone().map_err(failed)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(copy);
        let child = command
            .spawn()
            .map_err(|error| format!("{command:?}: {error}"))?;
        Ok(Self { child, errors })
    }

    /// Its input and its output, once.
    pub(crate) fn pipes(&mut self) -> (ChildStdin, BufReader<ChildStdout>) {
        let (input, output) = (self.child.stdin.take(), self.child.stdout.take());
        (input.unwrap(), BufReader::new(output.unwrap()))
    }

    /// Its output on standard error.
    pub(crate) fn said(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.errors.seek(SeekFrom::Start(0));
        let _ = self.errors.read_to_end(&mut bytes);
        process::tail(&String::from_utf8_lossy(&bytes))
    }

    /// Ends it.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.kill();
    }
}
