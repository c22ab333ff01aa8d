package vm

import (
	"fmt"
	"strconv"
	"strings"
)

// Files of a machine.
const (
	ModuleList = "/matrix/modules" // the files of modules, one a line, in the order of loading
	List       = "/matrix/jobs"    // a list of Job, as JSON
	// OnDemandList has the files of those that are loaded when the kernel asks for OnDemandIPv4 or
	// OnDemandIPv6, which it does for the first SCTP socket. Before, the kernel leaves SCTP's packets to
	// tests.
	OnDemandList = "/matrix/modules-on-demand"
	OnDemandIPv4 = "net-pf-2-proto-132-type-1"
	OnDemandIPv6 = "net-pf-10-proto-132-type-1"
)

// Line is the variable of a machine's first process that names the serial line for the jobs.
const Line = "MATRIX_LINE"

// NotStarted is the status of a job whose command could not be started.
const NotStarted = 127

// Job is a command for the machine to run.
type Job struct {
	Name    string
	Dir     string
	Command []string
	Env     []string
}

const frame = "\x1fmatrix "

// Begin is the line before the output of a job.
func Begin(name string) string { return fmt.Sprintf("\n%sbegin %s\n", frame, name) }

// End is the line after the output of a job.
func End(name string, status int) string { return fmt.Sprintf("\n%send %s %d\n", frame, name, status) }

// Frame reads a line that Begin or End made.
func Frame(line string) (name string, ended bool, status int, isFrame bool) {
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
