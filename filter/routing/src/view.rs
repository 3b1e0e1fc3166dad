//! One worker's view of the gateway: table copies, the ledger, requests in flight.
