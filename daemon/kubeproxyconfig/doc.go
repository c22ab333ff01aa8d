// Package kubeproxyconfig ensures that a configuration file of kube-proxy
// (kubeproxy.config.k8s.io/v1alpha1) works without a change. It reads the file,
// translates each field to the flag of nftproxy that means the same, and lists the fields
// that have no effect here.
//
// It opens no file. It judges only the fields that have no flag: the command judges
// flags, wherever their values come from.
package kubeproxyconfig
