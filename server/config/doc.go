// Package config turns a command line, an environment and a configuration file into one Config.
//
// Names, defaults, parse rules, error texts and exit codes are etcd's (v3.7): scripts, unit files and
// manifests that start etcd start Sluice. Sluice's own flags stand in a help section of their own.
//
// Parse is a plain function of its inputs: it returns what to print, what to log and whether to end the
// process, and leaves the doing to main. The fields of the Config that it returns are effective values:
// where etcd lets 0 mean "the default", the default stands in the field.
package config
