// Command server is the daemon: one member with its client, metrics and peer listeners.
//
// main.go reads the settings and ends the process; daemon.go starts and stops what runs in it; settings.go
// hands the flags to the rooms; member.go shows the member to the HTTP endpoints.
package main
