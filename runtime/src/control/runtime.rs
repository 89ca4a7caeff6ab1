//! The thread that serves the control plane.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kolo_transport::Process;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// One background thread, `kolo-control`, for any number of ranks in this process. A process with one rank makes one
/// and drops it with its last communicator. The ranks of an in-process cluster share one.
///
/// The thread ends and its sockets close when the last handle is dropped.
#[derive(Clone)]
pub struct ControlRuntime {
    inner: Arc<Inner>,
}

struct Inner {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Process in which the thread runs. A child made by `fork` has no such thread to wait for.
    process: Process,
}

impl ControlRuntime {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::System`] if the system refuses a thread or the descriptors for its event loop.
    pub fn new() -> Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::system("creating the event loop of the control plane", e))?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("kolo-control".into())
            .spawn(move || {
                let _ = runtime.block_on(stopped);
                // A name look-up may still block a helper thread, which ends by itself.
                runtime.shutdown_timeout(Duration::from_millis(100));
            })
            .map_err(|e| Error::system("starting the thread of the control plane", e))?;
        let inner = Inner { handle, stop: Some(stop), thread: Some(thread), process: Process::current() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether the caller runs on this very thread. Waiting for the thread would then never end.
    pub(crate) fn is_current(&self) -> bool {
        self.inner.thread.as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id())
    }

    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        self.inner.handle.spawn(task);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget((self.stop.take(), self.thread.take()));
            return;
        }
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for ControlRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlRuntime")
    }
}
