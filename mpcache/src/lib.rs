//! mpcache
