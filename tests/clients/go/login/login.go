// Package login has what the login programs share. Each takes BOOTSTRAP TOPIC CA MECHANISM USER, and the secrets in
// LOGIN_SECRET, or LOGIN_CERTIFICATE and LOGIN_KEY; it produces one record and prints its offset or the error as JSON.
package login

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
)

// The arguments.
var (
	Bootstrap, Topic, Mechanism, User = os.Args[1], os.Args[2], os.Args[4], os.Args[5]
	Secret                            = os.Getenv("LOGIN_SECRET")
)

// TLS trusts CA, and has the client's certificate where that is the mechanism.
func TLS() *tls.Config {
	authorities := x509.NewCertPool()
	pem, _ := os.ReadFile(os.Args[3])
	authorities.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: authorities}
	if Mechanism == "CERTIFICATE" {
		own, err := tls.LoadX509KeyPair(os.Getenv("LOGIN_CERTIFICATE"), os.Getenv("LOGIN_KEY"))
		if err != nil {
			panic(err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config
}

// Report prints what became of the record.
func Report(offset int64, err error) {
	answer := map[string]any{"offset": offset}
	if err != nil {
		answer = map[string]any{"error": err.Error()}
	}
	text, _ := json.Marshal(answer)
	fmt.Println(string(text))
}
