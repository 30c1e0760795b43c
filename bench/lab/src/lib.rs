//! Test networks made of namespaces.
