package main

import (
	"fmt"
	"strings"
)

// Files of a machine.
const (
	moduleList = "/matrix/modules" // the files of modules, one a line, in the order of loading
	jobList    = "/matrix/jobs"    // a list of job, as JSON
	// onDemandList is a list of demand, as JSON. SCTP is there on each machine: before its first socket, the kernel
	// leaves SCTP's packets to tests.
	onDemandList = "/matrix/modules-on-demand"
)

// demand is a module that is loaded when the kernel asks for one of its names: its file comes after those of the
// modules that it needs.
type demand struct{ Names, Files []string }

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

// request is a module that the kernel wanted to load for a process: the name by which it asked, and the process's name,
// of which the kernel has 15 characters.
type request struct{ Module, By string }

const mark = "\x1fmatrix "

// frame is a line that the machine writes about a job: that it begins, what it asked for, and that it ended.
type frame struct {
	kind, job string
	status    int     // of frameEnd
	asked     request // of frameAsked
}

const (
	frameBegin = "begin"
	frameAsked = "asked"
	frameEnd   = "end"
)

func (f frame) String() string {
	return fmt.Sprintf("\n%s%s %s %d %q %q\n", mark, f.kind, f.job, f.status, f.asked.Module, f.asked.By)
}

// readFrame reads a line of frame's String.
func readFrame(line string) (f frame, isFrame bool) {
	rest, isFrame := strings.CutPrefix(strings.TrimRight(line, "\r\n"), mark)
	if !isFrame {
		return f, false
	}
	_, err := fmt.Sscanf(rest, "%s %s %d %q %q", &f.kind, &f.job, &f.status, &f.asked.Module, &f.asked.By)
	return f, err == nil
}
