package main

import (
	"fmt"
	"strconv"
	"strings"
)

// Files of a machine.
const (
	moduleList = "/matrix/modules" // the files of modules, one a line, in the order of loading
	jobList    = "/matrix/jobs"    // a list of job, as JSON
	// onDemandList has the files of those that are loaded when the kernel asks for onDemandIPv4 or
	// onDemandIPv6, which it does for the first SCTP socket. Before, the kernel leaves SCTP's packets to
	// tests.
	onDemandList = "/matrix/modules-on-demand"
	onDemandIPv4 = "net-pf-2-proto-132-type-1"
	onDemandIPv6 = "net-pf-10-proto-132-type-1"
)

// lineVariable is the variable of a machine's first process that names the serial line for the jobs.
const lineVariable = "MATRIX_LINE"

// notStarted is the status of a job whose command could not be started.
const notStarted = 127

// job is a command for the machine to run.
type job struct {
	Name    string
	Dir     string
	Command []string
	Env     []string
}

const frame = "\x1fmatrix "

// beginFrame is the line before the output of a job.
func beginFrame(name string) string { return fmt.Sprintf("\n%sbegin %s\n", frame, name) }

// endFrame is the line after the output of a job.
func endFrame(name string, status int) string {
	return fmt.Sprintf("\n%send %s %d\n", frame, name, status)
}

// readFrame reads a line that beginFrame or endFrame made.
func readFrame(line string) (name string, ended bool, status int, isFrame bool) {
	rest, isFrame := strings.CutPrefix(strings.TrimRight(line, "\r\n"), frame)
	if !isFrame {
		return "", false, 0, false
	}
	words := strings.Fields(rest)
	switch {
	case len(words) == 2 && words[0] == "begin":
		return words[1], false, 0, true
	case len(words) == 3 && words[0] == "end":
		status, err := strconv.Atoi(words[2])
		return words[1], true, status, err == nil
	}
	return "", false, 0, false
}
