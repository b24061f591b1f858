//! RSS contexts: additional indirection tables, for the rules that refer to them (`struct ethtool_rxfh`,
//! `rss_context`; Documentation/networking/scaling.rst).

use super::{
    EthtoolCalls, EthtoolError, GRSSH, RXFH_CONTEXT, RXFH_LENGTH, ReceiveRules, SRSSH, put, request,
    table_request, word,
};

/// `ETH_RXFH_CONTEXT_ALLOC`: allocate a context and return its number.
const NEW: u32 = u32::MAX;

impl<C: EthtoolCalls> ReceiveRules<C> {
    /// Returns whether the driver has RSS contexts.
    pub fn has_contexts(&self) -> Result<bool, EthtoolError> {
        // Use an unused number. With contexts, the answer is that the context does not exist (ENOENT or
        // EINVAL). Without contexts, the answer is EOPNOTSUPP.
        const UNLIKELY: u32 = 0x7fff_0001;
        let mut data = request(GRSSH, RXFH_LENGTH);
        put(&mut data, RXFH_CONTEXT, &UNLIKELY.to_ne_bytes());
        match self.ask(&mut data, || "report whether it has RSS contexts".to_owned()) {
            Err(error) => match error.code() {
                Some(libc::ENOENT | libc::EINVAL) => Ok(true),
                Some(libc::EOPNOTSUPP) => Ok(false),
                _ => Err(error),
            },
            // Some drivers without contexts ignore the number and return their only table.
            Ok(()) => Ok(false),
        }
    }

    /// Returns the indirection table of a context, or `None` if the context does not exist.
    pub fn context(&self, context: u32) -> Result<Option<Vec<u32>>, EthtoolError> {
        match self.rss_of(context) {
            Err(error) if matches!(error.code(), Some(libc::ENOENT | libc::EINVAL)) => Ok(None),
            found => found.map(|found| Some(found.indirection)),
        }
    }

    /// Creates a context with this indirection table. The driver chooses the hash key and the hash function.
    /// Returns the context's number, which the kernel or the driver chooses.
    ///
    /// # Errors
    /// Returns an error if the driver has no further context, or refuses the table.
    pub fn create_context(&self, indirection: &[u32]) -> Result<u32, EthtoolError> {
        let mut data = table_request(NEW, indirection);
        self.ask(&mut data, || "create an RSS context".to_owned())?;
        match word(&data, RXFH_CONTEXT) {
            NEW | 0 => {
                Err(self
                    .strange("the driver reports no number for the RSS context that it created".to_owned()))
            }
            context => Ok(context),
        }
    }

    /// Sets a context's indirection table.
    ///
    /// # Errors
    /// Returns an error if the context does not exist, or the driver refuses the length or a queue.
    pub fn set_context(&self, context: u32, indirection: &[u32]) -> Result<(), EthtoolError> {
        let mut data = table_request(context, indirection);
        self.ask(&mut data, || format!("set the table of RSS context {context}"))
    }

    /// Deletes a context.
    ///
    /// # Errors
    /// Returns an error if a rule uses the context, or the driver refuses the deletion for another reason.
    pub fn delete_context(&self, context: u32) -> Result<(), EthtoolError> {
        // A request with an empty table deletes the context.
        let mut data = request(SRSSH, RXFH_LENGTH);
        put(&mut data, RXFH_CONTEXT, &context.to_ne_bytes());
        self.ask(&mut data, || format!("delete RSS context {context}"))
    }
}
