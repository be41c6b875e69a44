//! An xDS server, generic over the application it serves.
