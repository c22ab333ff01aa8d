package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// machine is a virtual machine that runs jobs.
type machine struct {
	target
	qemu, kernel string
	image        func(jobs []job) (file string, err error)
	// console is a file for what the kernel says.
	console string
	cpus    int
	// memory is in MiB, and devices are further arguments of qemu; parameters are further ones of the kernel.
	memory     int
	devices    []string
	parameters string
	// live takes the output of jobs while they run, if it is not nil.
	live io.Writer
	// kvm has this computer's processor run the machine, in place of qemu.
	kvm bool
	// userMode says that the kernel is a program of this computer (user-mode Linux).
	userMode bool
	// counted has the machine's clock count instructions, so that what else this computer does changes
	// no figure of a test. Such a machine is slower.
	counted bool
}

// outcome is what became of a job.
type outcome struct {
	status int
	output []byte
	// died says that the machine ended in the middle of the job; console has its last words.
	died    bool
	console string
	took    time.Duration
	// asked are the modules that the kernel asked for meanwhile.
	asked []request
}

// run runs the jobs in one machine, and in another those that come after one in whose middle the
// machine ended. It calls done for each job when the job has ended.
func (m machine) run(ctx context.Context, jobs []job, done func(name string, o outcome) error) error {
	for len(jobs) > 0 {
		file, err := m.image(jobs)
		if err != nil {
			return err
		}
		ended := map[string]bool{}
		err = m.boot(ctx, file, func(name string, o outcome) error {
			ended[name] = true
			return done(name, o)
		})
		if err != nil {
			return err
		}
		if len(ended) == 0 {
			return fmt.Errorf("the machine ended without a job; its last words:\n%s", lastLines(m.console, 40))
		}
		jobs = slices.DeleteFunc(slices.Clone(jobs), func(j job) bool { return ended[j.Name] })
	}
	return nil
}

// boot runs a machine until it ends, or the context does. It needs no rights and no support by this computer's
// processor, but for kvm.
func (m machine) boot(ctx context.Context, image string, done func(name string, o outcome) error) error {
	cmd := m.command(ctx, image)
	var complaints bytes.Buffer
	if m.userMode {
		console, err := os.Create(m.console)
		if err != nil {
			return err
		}
		defer console.Close()
		cmd.Stderr = console
	} else {
		cmd.Stderr = &complaints
	}
	lines, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	died, readErr := collect(lines, m.live, done)
	if readErr != nil {
		return errors.Join(readErr, cmd.Process.Kill(), cmd.Wait())
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s%s", cmd.Path, err, bytes.TrimSpace(complaints.Bytes()), lastLines(m.console, 20))
	}
	for name, o := range died {
		o.console = "\n" + lastLines(m.console, 60) + "\n"
		if err := done(name, o); err != nil {
			return err
		}
	}
	return nil
}

// command is what runs the machine, with the line for the jobs as its standard output.
func (m machine) command(ctx context.Context, image string) *exec.Cmd {
	parameters := "rdinit=/" + initName + " loglevel=5 " + m.parameters + " " + lineVariable + "="
	if m.userMode {
		return exec.CommandContext(ctx, m.kernel, m.userModeArguments(image, parameters)...)
	}
	processor := m.target.emulated
	switch {
	case m.kvm:
		processor = m.target.accelerated
	case m.counted:
		processor.args = append([]string{"-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"}, // ns an instruction
			processor.args[2:]...)
	}
	return exec.CommandContext(ctx, m.qemu, slices.Concat(processor.args, m.target.devices, m.devices, []string{
		"-smp", fmt.Sprint(m.cpus), "-m", fmt.Sprint(m.memory),
		"-kernel", m.kernel, "-initrd", image,
		"-append", parameters + m.line + " panic=-1 oops=panic nosoftlockup mitigations=off random.trust_cpu=on " +
			m.target.parameters + " " + processor.parameters,
		"-nodefaults", "-display", "none", "-no-reboot", "-device", "virtio-rng-pci",
		"-serial", "file:" + m.console, "-chardev", "stdio,id=jobs"})...)
}

// collect reads the jobs' outcomes from a machine's serial line, and copies their output to live if that is not nil. It
// returns the job, if any, in whose middle the line ends.
func collect(r io.Reader, live io.Writer, done func(name string, o outcome) error) (died map[string]outcome,
	err error) {
	var name string
	var output bytes.Buffer
	var asked []request
	var began time.Time
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		f, isFrame := readFrame(line)
		switch {
		case isFrame && f.kind == frameBegin:
			name, began, asked = f.job, time.Now(), nil
			output.Reset()
		case isFrame && f.kind == frameAsked && f.job == name:
			asked = append(asked, f.asked)
		case isFrame && f.kind == frameEnd && f.job == name:
			if err := done(name, outcome{status: f.status, output: bytes.Clone(output.Bytes()), took: time.Since(began),
				asked: asked}); err != nil {
				return nil, err
			}
			name = ""
		case name != "":
			output.WriteString(line)
			if live != nil {
				if _, err := io.WriteString(live, line); err != nil {
					return nil, err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			if name != "" {
				died = map[string]outcome{name: {output: output.Bytes(), died: true, took: time.Since(began)}}
			}
			return died, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// lastLines is the end of a text file.
func lastLines(file string, n int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
